/// What every sparsifier promises, and what each promises beyond that, on all kinds of data.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/sparsifiers/threshold_search.h"

namespace hvd_sparse {
namespace {

using Draw = std::function<double(std::mt19937_64&)>;

double Gauss(std::mt19937_64& random) { return std::normal_distribution<double>()(random); }
double Uniform(std::mt19937_64& random) {
  return std::uniform_real_distribution<double>(-1, 1)(random);
}
double Coin(std::mt19937_64& random) {
  return std::uniform_real_distribution<double>(0, 1)(random);
}

/// Data with enough distinct non-zero magnitudes for 2k/3 <= count <= 4k/3.
const std::vector<std::pair<std::string, Draw>> kDistributions = {
    {"gaussian", Gauss},
    {"laplace",
     [](auto& r) { return std::exponential_distribution<double>()(r) * (r() % 2 ? 1 : -1); }},
    {"student_t_3", [](auto& r) { return std::student_t_distribution<double>(3)(r); }},
    {"cauchy", [](auto& r) { return std::cauchy_distribution<double>()(r); }},
    {"90_percent_zeros", [](auto& r) { return Coin(r) < 0.9 ? 0.0 : Gauss(r); }},
    {"uniform", Uniform},
    {"shifted_by_half_a_sigma", [](auto& r) { return 0.5 + Gauss(r); }},
    {"shifted_by_5_sigma", [](auto& r) { return 5 + Gauss(r); }},
    {"shifted_by_-100_sigma", [](auto& r) { return -100 + Gauss(r); }},
    {"constant_plus_tiny_noise", [](auto& r) { return 1 + 1e-3 * Uniform(r); }},
    {"denormals", [](auto& r) { return 1e-39 * Gauss(r); }},
    {"1e-38_to_1e38", [](auto& r) { return std::pow(10.0, 38 * Uniform(r)); }},
    {"two_peaks", [](auto& r) { return Coin(r) < 0.0015 ? 1e6 + Gauss(r) : Gauss(r); }},
    {"near_the_largest_float", [](auto& r) { return 3.4e38 * Uniform(r); }},
};

std::vector<float> Make(const Draw& draw, std::int64_t size, int seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<float> dense(size);
  for (float& value : dense) value = static_cast<float>(draw(random));
  return dense;
}

struct Selection {
  std::int64_t count;
  SparseBlock block;
};

Selection Select(const std::string& name, const std::vector<float>& dense, std::int64_t k,
                 float* threshold) {
  const Sparsifier& sparsifier = FindSparsifier(name);
  const auto size = static_cast<std::int64_t>(dense.size());
  Selection selection;
  selection.block.Reset(sparsifier.Capacity(k, size));
  selection.count = sparsifier.Select(dense, k, 0, 0, threshold, CpuKernels(), &selection.block);
  selection.block.Finish(selection.count);
  return selection;
}

std::int64_t NonZeros(const std::vector<float>& dense) {
  return CpuKernels().CountAbove(dense, 0.0f);
}

/// Entries of `dense`, in order, none smaller in magnitude than one left out.
void ExpectLargestEntries(const std::vector<float>& dense, const SparseBlock& block) {
  std::vector<bool> chosen(dense.size());
  float least = std::numeric_limits<float>::infinity(), largest_left = 0;
  for (std::int64_t i = 0; i < block.count(); ++i) {
    const Index index = block.indices()[i];
    ASSERT_GE(index, 0);
    ASSERT_LT(index, static_cast<Index>(dense.size()));
    if (i > 0) {
      ASSERT_LT(block.indices()[i - 1], index);
    }
    ASSERT_EQ(block.values()[i], dense[index]);
    ASSERT_NE(block.values()[i], 0.0f);
    chosen[index] = true;
    least = std::min(least, std::fabs(dense[index]));
  }
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (!chosen[i]) largest_left = std::max(largest_left, std::fabs(dense[i]));
  }
  ASSERT_GE(least, largest_left);
}

/// Expects a lawful count: 2k/3 to 4k/3, or all non-zeros if there are fewer.
void ExpectCountNear(std::int64_t k, const Selection& s, const std::vector<float>& dense) {
  if (s.count != NonZeros(dense)) {
    EXPECT_GE(3 * s.count, 2 * k);
  }
  EXPECT_LE(3 * s.count, 4 * k);
}

class Sparsifiers : public testing::TestWithParam<std::string> {};

TEST_P(Sparsifiers, SelectTheLargestEntriesWithinTheCapacityOnAllKindsOfData) {
  for (const auto& [name, draw] : kDistributions) {
    for (const std::int64_t size : {1, 2, 10, 1000, 70000}) {
      const std::vector<float> dense = Make(draw, size);
      for (const double density : {0.001, 0.01, 0.3, 1.0}) {
        const auto k = static_cast<std::int64_t>(std::ceil(density * static_cast<double>(size)));
        SCOPED_TRACE(name + ", size " + std::to_string(size) + ", k " + std::to_string(k));
        float threshold = 0;
        const Selection first = Select(GetParam(), dense, k, &threshold);
        ExpectLargestEntries(dense, first.block);
        ExpectCountNear(k, first, dense);
        const Selection second = Select(GetParam(), dense, k, &threshold);
        ExpectLargestEntries(dense, second.block);
        ExpectCountNear(k, second, dense);
      }
    }
  }
}

TEST_P(Sparsifiers, SelectNothingOfZeros) {
  for (const std::int64_t size : {1, 64, 70000}) {
    float threshold = 0;
    EXPECT_EQ(Select(GetParam(), std::vector<float>(size, -0.0f), (size + 1) / 2, &threshold).count,
              0);
  }
}

TEST_P(Sparsifiers, SelectAllNonZerosWhereThereAreTooFew) {
  std::vector<float> dense(70000, 0.0f);
  for (std::size_t i = 0; i < dense.size(); i += 7000) dense[i] = 1e-40f;
  for (int step = 0; step < 3; ++step) {
    float threshold = 0;
    EXPECT_EQ(Select(GetParam(), dense, 700, &threshold).count, 10);
  }
}

TEST_P(Sparsifiers, SurviveEqualMagnitudes) {
  for (const std::int64_t size : {3, 1000, 300000}) {
    const std::vector<float> constant(size, -3.0f);
    const std::vector<float> integers = Make([](auto& r) { return std::round(Gauss(r)); }, size);
    for (const auto* dense : {&constant, &integers}) {
      const std::int64_t k = (size + 99) / 100;
      float threshold = 0;
      for (int step = 0; step < 3; ++step) {
        const Selection s = Select(GetParam(), *dense, k, &threshold);
        ExpectLargestEntries(*dense, s.block);
        ExpectCountNear(k, s, *dense);
      }
    }
  }
}

TEST_P(Sparsifiers, SurviveAnyRememberedThreshold) {
  const std::vector<float> dense = Make(Gauss, 20000);
  const float inf = std::numeric_limits<float>::infinity();
  for (float threshold : {-1.0f, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1e-45f, 1e38f,
                          std::numeric_limits<float>::max()}) {
    const Selection s = Select(GetParam(), dense, 200, &threshold);
    ExpectLargestEntries(dense, s.block);
    ExpectCountNear(200, s, dense);
    EXPECT_TRUE(std::isfinite(threshold));
    EXPECT_GE(threshold, 0.0f);
  }
}

TEST_P(Sparsifiers, AppendBehindOtherSegments) {
  const std::vector<float> dense = Make(Gauss, 5000);
  const Sparsifier& sparsifier = FindSparsifier(GetParam());
  SparseBlock block;
  block.Reset(3 + sparsifier.Capacity(50, 5000));
  for (int i = 0; i < 3; ++i) {
    block.indices()[i] = i;
    block.values()[i] = -7;
  }
  float threshold = 0;
  const auto count = sparsifier.Select(dense, 50, 1000, 3, &threshold, CpuKernels(), &block);
  block.Finish(3 + count);
  EXPECT_EQ(block.indices()[2], 2);
  EXPECT_EQ(block.values()[2], -7);
  for (std::int64_t i = 3; i < block.count(); ++i) {
    EXPECT_EQ(block.values()[i], dense[block.indices()[i] - 1000]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sparsifiers, testing::ValuesIn(SparsifierNames()),
                         [](const auto& info) { return info.param; });

TEST(TopKSparsifier, SelectsExactlyK) {
  for (const auto& [name, draw] : kDistributions) {
    if (name == "90_percent_zeros") continue;
    const std::vector<float> dense = Make(draw, 10000);
    float threshold = 0;
    EXPECT_EQ(Select("top_k", dense, 100, &threshold).count, 100) << name;
  }
}

/// Counts the reads of the whole array; everything else is the CPU's.
class CountingKernels final : public Kernels {
 public:
  explicit CountingKernels(std::int64_t size) : size_(size) {}
  int reads() const { return reads_; }
  std::int64_t Accumulate(GradView g, float d, float s, Span<float> r) const override {
    return cpu_.Accumulate(g, d, s, r);
  }
  Moments ComputeMoments(Span<const float> d) const override {
    return cpu_.ComputeMoments(Read(d));
  }
  std::int64_t CountAbove(Span<const float> d, float t) const override {
    return cpu_.CountAbove(Read(d), t);
  }
  void Sample(Span<const float> d, std::int64_t n, std::vector<float>* s) const override {
    cpu_.Sample(d, n, s);
  }
  std::int64_t SelectAbove(Span<const float> d, float t, Index o, std::int64_t f, std::int64_t l,
                           SparseBlock* out) const override {
    return cpu_.SelectAbove(Read(d), t, o, f, l, out);
  }
  TopKCut FindTopK(Span<const float> d, std::int64_t k) const override {
    reads_ += 3;
    return cpu_.FindTopK(d, k);
  }
  std::int64_t SelectCut(Span<const float> d, TopKCut c, Index o, std::int64_t f,
                         SparseBlock* out) const override {
    return cpu_.SelectCut(Read(d), c, o, f, out);
  }
  void Merge(const SparseBlock& a, const SparseBlock& b, SparseBlock* o) const override {
    cpu_.Merge(a, b, o);
  }
  void KeepTopK(std::int64_t k, SparseBlock* b) const override { cpu_.KeepTopK(k, b); }
  void Settle(const SparseBlock& s, const SparseBlock& r, Span<float> x) const override {
    cpu_.Settle(s, r, x);
  }
  void PutBack(const SparseBlock& s, Span<float> r) const override { cpu_.PutBack(s, r); }
  std::int64_t Scatter(const SparseBlock& b, float s, Index o, GradView g, Span<float> r,
                       std::vector<std::pair<Index, float>>* u, float l) const override {
    return cpu_.Scatter(b, s, o, g, r, u, l);
  }

 private:
  Span<const float> Read(Span<const float> dense) const {
    reads_ += dense.size == size_ ? 1 : 0;
    return dense;
  }
  const Kernels& cpu_ = CpuKernels();
  const std::int64_t size_;
  mutable int reads_ = 0;
};

TEST(GaussianSparsifier, ReadsTheDataOnceInTheSteadyStateAndAFewTimesAtFirst) {
  constexpr std::int64_t kSize = 1 << 18, kK = 2622;
  const Sparsifier& sparsifier = FindSparsifier("gaussian");
  SparseBlock block;
  block.Reset(sparsifier.Capacity(kK, kSize));
  for (const auto& [name, draw] : kDistributions) {
    const std::vector<float> dense = Make(draw, kSize);
    float threshold = 0;
    CountingKernels cold(kSize), warm(kSize);
    sparsifier.Select(dense, kK, 0, 0, &threshold, cold, &block);
    EXPECT_LE(cold.reads(), 4) << name;
    for (int step = 0; step < 10; ++step) {
      sparsifier.Select(dense, kK, 0, 0, &threshold, warm, &block);
    }
    EXPECT_EQ(warm.reads(), 10) << name;
  }
}

TEST(GaussianSparsifier, TheCountDriftsBackToK) {
  constexpr std::int64_t kSize = 1 << 18, kK = 2622;
  for (const auto& [name, draw] : kDistributions) {
    const std::vector<float> dense = Make(draw, kSize);
    float threshold = 0;
    std::int64_t count = 0;
    for (int step = 0; step < 30; ++step) count = Select("gaussian", dense, kK, &threshold).count;
    EXPECT_NEAR(static_cast<double>(count) / kK, 1.0, 0.1) << name;
  }
}

TEST(GaussianSparsifier, FollowsDataThatGrows) {
  constexpr std::int64_t kSize = 1 << 16, kK = 656;
  std::vector<float> dense = Make(Gauss, kSize);
  CountingKernels kernels(kSize);
  const Sparsifier& sparsifier = FindSparsifier("gaussian");
  SparseBlock block;
  block.Reset(sparsifier.Capacity(kK, kSize));
  float threshold = 0;
  sparsifier.Select(dense, kK, 0, 0, &threshold, CpuKernels(), &block);
  for (int step = 0; step < 100; ++step) {
    for (float& value : dense) value *= 1.01f;
    sparsifier.Select(dense, kK, 0, 0, &threshold, kernels, &block);
  }
  EXPECT_EQ(kernels.reads(), 100);
}

TEST(GaussianUpperQuantile, InvertsTheTailOfTheNormalDistribution) {
  for (double z = -5; z < 12; z += 0.01) {
    const double tail = 0.5 * std::erfc(z / std::sqrt(2.0));
    EXPECT_NEAR(GaussianUpperQuantile(tail), z, 1e-6 + 1e-6 * std::fabs(z));
  }
}

TEST(FindSparsifier, NamesThoseThatExist) {
  try {
    FindSparsifier("random_k");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "sparsifier must be one of top_k, gaussian; got 'random_k'");
  }
}

}  // namespace
}  // namespace hvd_sparse

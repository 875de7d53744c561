/// A segment under error feedback, for the tests of sparsifiers, and data of all kinds for it.

#ifndef HVD_SPARSE_TESTS_CSRC_SEGMENT_H_
#define HVD_SPARSE_TESTS_CSRC_SEGMENT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/sparsifiers/sparsifier.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {

// ---- Data ---------------------------------------------------------------------------------------

using Draw = std::function<double(std::mt19937_64&)>;

inline double Gauss(std::mt19937_64& random) { return std::normal_distribution<double>()(random); }
inline double Uniform(std::mt19937_64& random) {
  return std::uniform_real_distribution<double>(-1, 1)(random);
}
inline double Coin(std::mt19937_64& random) {
  return std::uniform_real_distribution<double>(0, 1)(random);
}
inline double Laplace(std::mt19937_64& random) {
  return std::exponential_distribution<double>()(random) * (random() % 2 == 0 ? 1 : -1);
}
inline double StudentT3(std::mt19937_64& random) {
  return std::student_t_distribution<double>(3)(random);
}

/// Distributions with enough distinct non-zero magnitudes for 2k/3 <= count <= 4k/3.
inline const std::vector<std::pair<std::string, Draw>> kDistributions = {
    {"gaussian", Gauss},
    {"laplace", Laplace},
    {"student_t_3", StudentT3},
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

inline std::vector<float> Make(const Draw& draw, std::int64_t size, int seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = static_cast<float>(draw(random));
  return values;
}

/// Successive gradients, drawn cheaply: windows of a pool of draws.
class Gradients {
 public:
  Gradients(const Draw& draw, std::int64_t size) : size_(size), pool_(Make(draw, 4 * size, 7)) {}

  std::vector<float> Next(float scale = 1) {
    const auto begin = pool_.begin() + static_cast<std::int64_t>(random_() % (3 * size_));
    std::vector<float> gradient(begin, begin + size_);
    for (float& value : gradient) value *= scale;
    return gradient;
  }

 private:
  std::int64_t size_;
  std::vector<float> pool_;
  std::mt19937_64 random_{8};
};

// ---- A segment ----------------------------------------------------------------------------------

/// The result of one step of a segment.
struct Step {
  std::vector<float> accumulated;  ///< the segment after error feedback, before anything was taken
  std::vector<float> residual;     ///< and afterwards
  Entries taken;                   ///< by position in the segment
  std::int64_t not_finite = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(taken.size()); }
  std::int64_t NonZeros() const { return CpuKernels().CountAbove(accumulated, 0.0f); }
};

/// A segment. Each step expects the laws of all sparsifiers: entries ascend, number at most
/// Capacity, and every value is in exactly one place, the block or the residual.
class Segment {
 public:
  SelectionState state;

  Segment(const std::string& sparsifier, std::int64_t size, const SparsifierOptions& options = {})
      : sparsifier_(MakeSparsifier(sparsifier, options)),
        size_(size),
        bucket_(static_cast<std::size_t>(kOffset + size)) {}

  Span<float> residual() { return Span<float>(bucket_).Sub(kOffset, size_); }

  /// Runs one step with consecutive gradients of these sizes; by default a single one.
  Step Run(const std::vector<float>& gradient, std::int64_t k, std::vector<std::int64_t> sizes = {},
           const Kernels& kernels = CpuKernels()) {
    if (sizes.empty()) sizes = {size_};
    Step step;
    step.accumulated = Accumulated(gradient, &step.not_finite);

    std::vector<Feedback> feedback;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      const GradView view{const_cast<float*>(gradient.data()) + begin, size, DType::kFloat32};
      feedback.push_back({view, 1, 1, residual().Sub(begin, size)});
      begin += size;
    }
    const std::int64_t room = sparsifier_->Room(k, size_);
    SparseBlock block;
    block.Reset(kFilled + room);
    std::fill_n(block.indices(), kFilled, -1);
    std::fill_n(block.values(), kFilled, -7.0f);
    Selection selection(feedback, residual(), kOffset, kFilled, room, kernels, &block);
    sparsifier_->Select(k, &state, &selection);
    selection.Finish();
    EXPECT_LE(sparsifier_->Capacity(k, size_), room);
    EXPECT_LE(selection.taken(), sparsifier_->Capacity(k, size_));
    EXPECT_EQ(selection.not_finite(), step.not_finite);

    step.residual.assign(residual().begin(), residual().end());
    step.taken = EntriesOf(block, kFilled + selection.taken(), kFilled);
    for (Entry& entry : step.taken) entry.index -= kOffset;
    ExpectNothingIsLost(step);
    EXPECT_EQ(EntriesOf(block, kFilled), Entries(kFilled, {-1, -7.0f}));
    return step;
  }

 private:
  static constexpr Index kOffset = 1000;      // of the segment in its bucket
  static constexpr std::int64_t kFilled = 3;  // entries of the segments before it

  std::vector<float> Accumulated(const std::vector<float>& gradient, std::int64_t* not_finite) {
    std::vector<float> sums(residual().begin(), residual().end());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float sum = sums[i] + gradient[i];
      if (std::isfinite(sum)) {
        sums[i] = sum;
      } else {
        ++*not_finite;
      }
    }
    return sums;
  }

  static void ExpectNothingIsLost(const Step& step) {
    std::vector<float> together = step.residual;
    Index last = -1;
    for (const Entry& entry : step.taken) {
      ASSERT_LT(last, entry.index);
      ASSERT_LT(entry.index, static_cast<Index>(together.size()));
      ASSERT_EQ(FloatBits(together[static_cast<std::size_t>(entry.index)]), 0u);
      together[static_cast<std::size_t>(entry.index)] = entry.value;
      last = entry.index;
    }
    EXPECT_TRUE(SameBits(together, step.accumulated));
  }

  const std::unique_ptr<const Sparsifier> sparsifier_;
  const std::int64_t size_;
  std::vector<float> bucket_;
};

/// Expects that no taken entry is smaller than one left; of equal ones, the first are taken.
inline void ExpectLargestEntries(const Step& step) {
  float least = kInf, largest_left = 0;
  Index last_of_least = -1;
  for (const Entry& entry : step.taken) {
    const float magnitude = std::fabs(entry.value);
    EXPECT_GT(magnitude, 0.0f);
    if (magnitude <= least) last_of_least = entry.index;
    least = std::min(least, magnitude);
  }
  for (const float value : step.residual) largest_left = std::max(largest_left, std::fabs(value));
  EXPECT_GE(least, largest_left);
  if (least != largest_left) return;
  const auto first_left =
      std::find_if(step.residual.begin(), step.residual.end(),
                   [&](float value) { return std::fabs(value) == largest_left; });
  EXPECT_LT(last_of_least, first_left - step.residual.begin());
}

/// Expects 2k/3 to 4k/3 entries, or all non-zeros if there are fewer.
inline void ExpectCountNear(std::int64_t k, const Step& step) {
  EXPECT_TRUE(3 * step.count() >= 2 * k || step.count() == step.NonZeros())
      << step.count() << " of " << step.NonZeros() << " non-zeros, k " << k;
  EXPECT_LE(3 * step.count(), 4 * k);
}

/// Returns k for a segment at a density.
inline std::int64_t KOf(double density, std::int64_t size) {
  return static_cast<std::int64_t>(std::ceil(density * static_cast<double>(size)));
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_SEGMENT_H_

/// Writing a reduced block into gradients of every number type: plain, parallel and streamed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"

namespace hvd_sparse {
namespace {

using Undo = std::vector<std::pair<Index, float>>;

TEST(Scatter, WritesThePartThatBelongsToTheGradient) {
  const SparseBlock reduced =
      MakeBlock({{1, 1}, {Marked(4, true), 2}, {6, 4}, {Marked(9, true), 8}, {10, 16}});
  std::vector<float> grad(6, 99.0f), residual(6, 1.0f);
  Undo undo;
  const GradView view{grad.data(), 6, DType::kFloat32};
  EXPECT_EQ(CpuKernels().Scatter(reduced, 0.5f, 4, view, residual, &undo), 0);
  EXPECT_EQ(grad, (std::vector<float>{1, 0, 2, 0, 0, 4}));
  EXPECT_EQ(residual, std::vector<float>(6, 1.0f));
  EXPECT_TRUE(undo.empty());

  std::vector<double> wide(6, 99.0);
  EXPECT_EQ(
      CpuKernels().Scatter(reduced, 0.5f, 4, {wide.data(), 6, DType::kFloat64}, residual, &undo),
      0);
  EXPECT_EQ(wide, (std::vector<double>{1, 0, 2, 0, 0, 4}));
}

template <typename Half>
void ExpectLossGoesIntoTheResidual(DType dtype, float loss_scale) {
  const std::vector<float> values = {1.0f, 1.0001f, -3.14159f, 1e-6f, 0.0f};
  SparseBlock reduced;
  reduced.Reset(5);
  for (Index i = 0; i < 5; ++i) {
    reduced.indices()[i] = 100 + 2 * i;
    reduced.values()[i] = values[i];
  }
  reduced.Finish(5);
  std::vector<Half> grad(10);
  std::vector<float> residual(10, 0.125f);
  const std::vector<float> before = residual;
  Undo undo;
  EXPECT_EQ(CpuKernels().Scatter(reduced, 2.0f, 100, {grad.data(), 10, dtype}, residual, &undo,
                                 loss_scale),
            0);
  for (Index i = 0; i < 10; ++i) {
    const float wanted = i % 2 == 0 ? 2.0f * values[i / 2] : 0.0f;
    EXPECT_EQ(grad[i].bits, Narrow<Half>(wanted).bits);
    EXPECT_EQ(residual[i], 0.125f + loss_scale * (wanted - Widen(grad[i])));
  }
  ASSERT_GE(undo.size(), 2u);
  for (auto it = undo.rbegin(); it != undo.rend(); ++it) residual[it->first - 100] = it->second;
  EXPECT_EQ(residual, before);
}

TEST(Scatter, ReturnsWhatRoundingLosesToTheResidual) {
  for (const float loss_scale : {1.0f, 0.25f}) {
    ExpectLossGoesIntoTheResidual<Float16>(DType::kFloat16, loss_scale);
    ExpectLossGoesIntoTheResidual<BFloat16>(DType::kBFloat16, loss_scale);
  }
}

TEST(Scatter, CountsWhatIsNotFiniteInTheNarrowType) {
  const SparseBlock reduced = MakeBlock({{0, 1e5f}, {1, 1}, {2, kInf}, {3, kNan}});
  std::vector<Float16> grad(4);
  std::vector<float> wide(4), residual(4, 1.0f);
  Undo undo;
  EXPECT_EQ(CpuKernels().Scatter(reduced, 1, 0, {grad.data(), 4, DType::kFloat16}, residual, &undo),
            3);
  EXPECT_EQ(CpuKernels().Scatter(reduced, 1, 0, {wide.data(), 4, DType::kFloat32}, residual, &undo),
            2);
  EXPECT_EQ(residual, std::vector<float>(4, 1.0f));
}

TEST(Scatter, EmptyGradientAndEmptyBlock) {
  std::vector<float> residual;
  Undo undo;
  EXPECT_EQ(CpuKernels().Scatter(MakeBlock({{5, 1}}), 1, 5, {nullptr, 0, DType::kFloat32}, residual,
                                 &undo),
            0);
  std::vector<float> grad(3, 9.0f);
  CpuKernels().Scatter(MakeBlock({}), 1, 0, {grad.data(), 3, DType::kFloat32}, residual, &undo);
  EXPECT_EQ(grad, std::vector<float>(3, 0.0f));
}

// ---- Compared with a plain loop -----------------------------------------------------------------

constexpr Index kOffset = 5000;  // of the gradient in its bucket
constexpr float kScale = 0.7f, kLossScale = 0.25f;

/// The result of a Scatter, compared bit for bit.
template <typename T>
struct Scattered {
  std::vector<T> grad;
  std::vector<float> residual;
  Undo undo;
  std::int64_t not_finite = 0;
};

template <typename T>
Scattered<T> PlainScatter(const Entries& entries, std::int64_t size,
                          const std::vector<float>& residual) {
  Scattered<T> result{std::vector<T>(size, T{}), residual, {}, 0};
  for (const Entry& entry : entries) {
    const std::int64_t i = Position(entry.index) - kOffset;
    if (i < 0 || i >= size) continue;
    const float value = kScale * entry.value;
    result.grad[i] = Narrow<T>(value);
    const float kept = Widen(result.grad[i]);
    if (!std::isfinite(kept)) {
      ++result.not_finite;
    } else if (sizeof(T) < sizeof(float) && kept != value) {
      result.undo.emplace_back(Position(entry.index), result.residual[i]);
      result.residual[i] += kLossScale * (value - kept);
    }
  }
  return result;
}

/// Returns few entries, with runs of neighbours at either end and across the borders of parts and
/// chunks; some lie before and after the gradient.
Entries EntriesAround(std::int64_t size) {
  std::mt19937 random(31);
  const std::vector<float> values = Awkward(1000, 32);
  Entries entries;
  for (std::int64_t i = -100; i < size + 100; ++i) {
    const bool dense = i < 20 || i >= size - 20 || (i & 0x3fff) < 5 || (i & 0x3fff) > 0x3ffb;
    if (!dense && random() % 500 != 0) continue;
    const auto index = static_cast<Index>(kOffset + i);
    entries.push_back({Marked(index, random() % 2 == 0), values[random() % values.size()]});
  }
  return entries;
}

/// Scatters to a gradient that begins `shift` elements after an aligned address.
template <typename T>
void ExpectEqualsThePlainLoop(std::int64_t size, std::int64_t shift) {
  SCOPED_TRACE(testing::Message() << size << " entries, shifted by " << shift);
  const Entries entries = EntriesAround(size);
  const SparseBlock reduced = MakeBlock(entries);
  const std::vector<float> before = Awkward(size, 33);
  const Scattered<T> expected = PlainScatter<T>(entries, size, before);
  const T guard = Narrow<T>(-3.0f);
  WithOneToThreeThreads([&] {
    Buffer memory;
    memory.Reserve((size + shift + 1) * static_cast<std::int64_t>(sizeof(T)));
    T* const begin = reinterpret_cast<T*>(memory.data());
    std::fill_n(begin, size + shift + 1, guard);
    std::vector<float> residual = before;
    Undo undo;
    const GradView grad{begin + shift, size, kDTypeOf<T>};
    EXPECT_EQ(CpuKernels().Scatter(reduced, kScale, kOffset, grad, residual, &undo, kLossScale),
              expected.not_finite);
    EXPECT_EQ(std::memcmp(begin + shift, expected.grad.data(), sizeof(T) * size), 0);
    EXPECT_TRUE(SameBits(residual, expected.residual));
    EXPECT_EQ(undo, expected.undo);
    for (std::int64_t i = 0; i < shift; ++i) {
      EXPECT_EQ(std::memcmp(begin + i, &guard, sizeof(T)), 0);
    }
    EXPECT_EQ(std::memcmp(begin + shift + size, &guard, sizeof(T)), 0);
  });
}

template <typename T>
class ScatterInto : public testing::Test {};
TYPED_TEST_SUITE(ScatterInto, GradientTypes);

TYPED_TEST(ScatterInto, EqualsThePlainLoop) {
  for (const std::int64_t size : {1, 511, 2049, 65536, 65537, 131073, 300000}) {
    ExpectEqualsThePlainLoop<TypeParam>(size, 0);
  }
}

TYPED_TEST(ScatterInto, EqualsThePlainLoopWhereItStreams) {
  constexpr std::int64_t kSize = (16 << 20) / sizeof(TypeParam);  // streamed from here on
  for (const std::int64_t size : {kSize - 1, kSize, kSize + 12345}) {
    ExpectEqualsThePlainLoop<TypeParam>(size, 0);
  }
}

TYPED_TEST(ScatterInto, EqualsThePlainLoopWhereAlignmentForbidsToStream) {
  constexpr std::int64_t kSize = (16 << 20) / sizeof(TypeParam) + 3;
  for (const std::int64_t shift : {1, 3}) ExpectEqualsThePlainLoop<TypeParam>(kSize, shift);
}

TYPED_TEST(ScatterInto, MalformedBlocksStayInside) {
  constexpr std::int64_t kSmall = 3000, kStreamed = (16 << 20) / sizeof(TypeParam);
  constexpr std::int64_t kGuard = Buffer::kAlignment / sizeof(TypeParam);
  for (const std::int64_t size : {kSmall, kStreamed}) {
    // Mostly ascending, with steps back across the borders of chunks and parts; then in any order.
    Entries chaos;
    for (std::int64_t i = 0; i < size; i += 50) {
      chaos.push_back({static_cast<Index>(kOffset + (i % 1000 == 950 ? i / 2 : i)), 1.0f});
    }
    for (const Index index : {INT32_MAX, -1, kOffset, kOffset, 0}) chaos.push_back({index, 1.0f});
    const SparseBlock reduced = MakeBlock(chaos);
    WithOneToThreeThreads([&] {
      Buffer memory;
      memory.Reserve((size + 2 * kGuard) * static_cast<std::int64_t>(sizeof(TypeParam)));
      TypeParam* const begin = reinterpret_cast<TypeParam*>(memory.data());
      std::fill_n(begin, size + 2 * kGuard, Narrow<TypeParam>(-3.0f));
      std::vector<float> residual(size);
      Undo undo;
      CpuKernels().Scatter(reduced, 1, kOffset, {begin + kGuard, size, kDTypeOf<TypeParam>},
                           residual, &undo);
      for (std::int64_t i = 0; i < kGuard; ++i) {
        EXPECT_EQ(Widen(begin[i]), -3.0f);
        EXPECT_EQ(Widen(begin[kGuard + size + i]), -3.0f);
      }
      EXPECT_EQ(residual, std::vector<float>(size));
    });
  }
}

}  // namespace
}  // namespace hvd_sparse

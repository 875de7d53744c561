/// Non-finite gradients are found wherever the entry is, in every number type.

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

template <typename T, typename Make>
void AnyEntryCounts(DType dtype, const Make& make) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t numel : {0, 1, 4096, 4097, 10000}) {
    std::vector<T> gradient(static_cast<std::size_t>(numel), make(-2.5f));
    const GradView view{gradient.data(), numel, dtype};
    EXPECT_TRUE(AllFinite(view));
    for (const std::int64_t place : {std::int64_t{0}, numel / 2, numel - 1}) {
      if (numel == 0) continue;
      for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        T& entry = gradient[static_cast<std::size_t>(place)];
        entry = make(bad);
        EXPECT_FALSE(AllFinite(view));
        entry = make(0.0f);
      }
    }
    EXPECT_TRUE(AllFinite(view));
  }
}

TEST(AllFinite, AnyEntryCountsInEveryNumberType) {
  AnyEntryCounts<float>(DType::kFloat32, [](float value) { return value; });
  AnyEntryCounts<double>(DType::kFloat64, [](float value) { return static_cast<double>(value); });
  AnyEntryCounts<Float16>(DType::kFloat16, [](float value) { return Narrow<Float16>(value); });
  AnyEntryCounts<BFloat16>(DType::kBFloat16, [](float value) { return Narrow<BFloat16>(value); });
}

TEST(AllFinite, TheLargestNumbersAreFinite) {
  std::vector<float> floats(100, std::numeric_limits<float>::max());
  std::vector<double> doubles(100, std::numeric_limits<double>::max());
  EXPECT_TRUE(AllFinite({floats.data(), 100, DType::kFloat32}));
  EXPECT_TRUE(AllFinite({doubles.data(), 100, DType::kFloat64}));
}

}  // namespace
}  // namespace hvd_sparse::cpu

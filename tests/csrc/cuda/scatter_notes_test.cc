/// Scatter records an outcome and a former value for each entry written into a narrow gradient.

#include <gtest/gtest.h>

#include <vector>

#include "csrc/cuda/kernels/launches.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

using cuda::Narrowed;
using CudaScatterNotes = CudaTest;

TEST_F(CudaScatterNotes, EveryEntryHasAnOutcomeAndAFormerValue) {
  DeviceArray<Index> indices({0, 1, 2, 9});  // the last one lies outside the gradient
  DeviceArray<float> values({1.0f, 1.001f, kMax, 1.0f}), residual({5, 6, 7, 8});
  DeviceArray<float> former(std::vector<float>(4, -1.0f));
  DeviceArray<Narrowed> narrowed(std::vector<Narrowed>(4, Narrowed::kNotFinite));
  DeviceArray<BFloat16> gradient(std::vector<BFloat16>(4));
  cuda::LaunchScatter({indices.data(),
                       values.data(),
                       4,
                       1.0f,
                       0,
                       {gradient.data(), 4, DType::kBFloat16},
                       residual.span(),
                       1.0f,
                       narrowed.data(),
                       former.data()},
                      nullptr);
  EXPECT_EQ(narrowed.Values(), std::vector<Narrowed>({Narrowed::kExact, Narrowed::kRounded,
                                                      Narrowed::kNotFinite, Narrowed::kExact}));
  EXPECT_EQ(former.Values(), std::vector<float>({0, 6, 0, 0}));
}

}  // namespace
}  // namespace hvd_sparse

/// The merge that benchmarks and plans time does what it claims, however often it runs.

#include "csrc/kernels/merge_work.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "csrc/cuda/base/stream.h"
#include "csrc/devices/kernels_for.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 4000;

class CudaMergeWork : public CudaTest {
 protected:
  /// Gives the work to a non-blocking stream.
  void Enqueue(MergeWork* work) {
    if (stream_ == nullptr) stream_ = std::make_unique<cuda::Stream>();
    work->Enqueue(reinterpret_cast<StreamHandle>(stream_->get()));  // NOLINT: as frameworks do
  }

 private:
  std::unique_ptr<cuda::Stream> stream_;
};

TEST_F(CudaMergeWork, AMergeGivesTheLargestOfTheSum) {
  Entries a, b;
  const std::vector<float> values = Awkward(kNumel, 1);
  for (Index i = 0; i < 900; ++i) a.push_back({3 * i, values[i]});
  for (Index i = 0; i < 700; ++i) b.push_back({2 * i + 1, values[1000 + i]});
  SparseBlock expected, made;
  CpuKernels().Merge(MakeBlock(a), MakeBlock(b), &expected);
  expected.Finish(CpuKernels().KeepTopK(900, 0, expected.count(), &expected));
  const auto work = MergeWorkOn(kGpu, MakeBlock(a), MakeBlock(b), 900);
  for (int time = 0; time < 2; ++time) {
    Enqueue(work.get());
    work->WaitForResult(&made);
    EXPECT_EQ(EntriesOf(made), EntriesOf(expected));
  }
}

TEST(MergeWork, TheCpuHasNoStreams) {
  EXPECT_THROW(MergeWorkOn({}, MakeBlock({}), MakeBlock({}), 1), Error);
}

TEST_F(CudaMergeWork, WhatCannotBeIsRefused) {
  EXPECT_THROW(MergeWorkOn(kGpu, MakeBlock({}), MakeBlock({}), 0), Error);
  EXPECT_THROW(MergeWorkOn({DeviceType::kCuda, 999}, MakeBlock({}), MakeBlock({}), 1), Error);
}

}  // namespace
}  // namespace hvd_sparse

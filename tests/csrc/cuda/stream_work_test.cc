/// The pieces of work that benchmarks time do what they claim, however often they run.

#include "csrc/kernels/stream_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/cuda/base/stream.h"
#include "csrc/devices/kernels_for.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 4000;

class CudaStreamWork : public CudaTest {
 protected:
  /// Gives the work to a non-blocking stream.
  void Enqueue(StreamWork* work) {
    if (stream_ == nullptr) stream_ = std::make_unique<cuda::Stream>();
    work->Enqueue(reinterpret_cast<StreamHandle>(stream_->get()));  // NOLINT: as frameworks do
  }

 private:
  std::unique_ptr<cuda::Stream> stream_;
};

TEST_F(CudaStreamWork, AMergeGivesTheLargestOfTheSum) {
  Entries a, b;
  const std::vector<float> values = Awkward(kNumel, 1);
  for (Index i = 0; i < 900; ++i) a.push_back({3 * i, values[i]});
  for (Index i = 0; i < 700; ++i) b.push_back({2 * i + 1, values[1000 + i]});
  SparseBlock expected, made;
  CpuKernels().Merge(MakeBlock(a), MakeBlock(b), &expected);
  expected.Finish(CpuKernels().KeepTopK(900, 0, expected.count(), &expected));
  const auto work = StreamWorkOn(kGpu, &StreamWorkMakers::merge, MakeBlock(a), MakeBlock(b), 900);
  for (int time = 0; time < 2; ++time) {
    Enqueue(work.get());
    work->WaitForResult(&made);
    EXPECT_EQ(EntriesOf(made), EntriesOf(expected));
  }
}

TEST_F(CudaStreamWork, APassTakesWhatExceedsTheThreshold) {
  std::vector<float> gradient = Awkward(kNumel, 2), residual = Awkward(kNumel, 3);
  DeviceArray<float> on_device(gradient), rest(residual);
  const GradView view{on_device.data(), kNumel, DType::kFloat32};
  const auto work = StreamWorkOn(kGpu, &StreamWorkMakers::pass, view, rest.span(), 2.5f, kNumel);
  for (int time = 0; time < 2; ++time) {
    SparseBlock expected, made;
    expected.Reset(kNumel);
    const Feedback feedback{{gradient.data(), kNumel, DType::kFloat32}, 1, 1, residual};
    expected.Finish(TakeAbove(CpuKernels(), feedback, 2.5f, {kNumel}, &expected).taken);
    Enqueue(work.get());
    work->WaitForResult(&made);
    EXPECT_EQ(EntriesOf(made), EntriesOf(expected));
    EXPECT_TRUE(SameBits(rest.Values(), residual));
  }
}

TEST_F(CudaStreamWork, ASelectionTakesTheLargest) {
  std::vector<float> gradient = Awkward(kNumel, 4), residual = Awkward(kNumel, 5);
  DeviceArray<float> on_device(gradient), rest(residual);
  const auto work =
      StreamWorkOn(kGpu, &StreamWorkMakers::select,
                   GradView{on_device.data(), kNumel, DType::kFloat32}, rest.span(), 99);
  Enqueue(work.get());
  SparseBlock expected, made;
  work->WaitForResult(&made);
  CpuKernels().Accumulate({{gradient.data(), kNumel, DType::kFloat32}, 1, 1, residual});
  expected.Reset(99);
  const TopKCut cut = CpuKernels().FindTopK(residual, 99);
  expected.Finish(TakeCut(CpuKernels(), residual, cut, {99}, &expected));
  for (Index i = 0; i < 99; ++i) expected.indices()[i] = Marked(expected.indices()[i], true);
  EXPECT_EQ(EntriesOf(made), EntriesOf(expected));
}

TEST_F(CudaStreamWork, AStepWritesTheLargestOfEachLayerAndLeavesTheRest) {
  const std::vector<float> gradient = Awkward(kNumel, 6);
  const std::vector<std::int64_t> numels = {3000, 10, 990}, ks = {99, 3, 20};
  DeviceArray<float> from(gradient), to(std::vector<float>(kNumel, -3)),
      rest(std::vector<float>(kNumel, 0));
  std::vector<GradView> gradients, outputs;
  std::vector<float> residual(kNumel), expected(kNumel);
  Entries taken;
  Index begin = 0;
  for (std::size_t i = 0; i < numels.size(); begin += static_cast<Index>(numels[i++])) {
    gradients.push_back({from.data() + begin, numels[i], DType::kFloat32});
    outputs.push_back({to.data() + begin, numels[i], DType::kFloat32});
    const Span<float> own = Span<float>(residual).Sub(begin, numels[i]);
    std::copy_n(gradient.begin() + begin, numels[i], own.data);
    for (float& value : own) value += 0.0f;  // joins a residual of zeros
    SparseBlock block;
    block.Reset(ks[i]);
    const TopKCut cut = CpuKernels().FindTopK(own, ks[i]);
    block.Finish(TakeCut(CpuKernels(), own, cut, {ks[i], begin}, &block));
    for (const Entry& entry : EntriesOf(block)) {
      taken.push_back({Marked(entry.index, true), entry.value});
      expected[entry.index] = entry.value;
    }
  }
  const auto work =
      StreamWorkOn(kGpu, &StreamWorkMakers::step, gradients, rest.span(), ks, outputs);
  Enqueue(work.get());
  SparseBlock made;
  work->WaitForResult(&made);
  EXPECT_EQ(EntriesOf(made), taken);
  EXPECT_TRUE(SameBits(to.Values(), expected));
  EXPECT_TRUE(SameBits(rest.Values(), residual));
}

TEST(StreamWork, TheCpuHasNoStreams) {
  EXPECT_THROW(StreamWorkOn({}, &StreamWorkMakers::merge, MakeBlock({}), MakeBlock({}), 1), Error);
}

TEST_F(CudaStreamWork, WhatCannotBeIsRefused) {
  DeviceArray<float> array(std::vector<float>(10));
  const GradView view{array.data(), 10, DType::kFloat32};
  using Ks = std::vector<std::int64_t>;
  const std::vector<GradView> views{view}, none;
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::merge, MakeBlock({}), MakeBlock({}), 0),
               Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::pass, view, array.span().Sub(0, 9), 1, 5),
               Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::pass, view, array.span(), 1, 11), Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::select, view, array.span(), 0), Error);
  EXPECT_THROW(
      StreamWorkOn({DeviceType::kCuda, 999}, &StreamWorkMakers::select, view, array.span(), 1),
      Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::step, views, array.span(), Ks{11}, views),
               Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::step, views, array.span(), Ks{1, 1}, views),
               Error);
  EXPECT_THROW(StreamWorkOn(kGpu, &StreamWorkMakers::step, views, array.span(), Ks{1}, none),
               Error);
}

}  // namespace
}  // namespace hvd_sparse

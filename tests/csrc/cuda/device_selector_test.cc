/// Selections that never leave a device are those of the CPU, with the same thresholds after them.

#include "csrc/cuda/device_selector.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "csrc/sparsifiers/prediction.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

using cuda::DeviceBlockHeader;

std::vector<float> Gaussian(std::int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = gaussian(random);
  return values;
}

/// Without survived bits.
Entries Unmarked(Entries entries) {
  for (Entry& entry : entries) entry.index = Position(entry.index);
  return entries;
}

/// A rank that selects on the device, step by step.
struct OnDevice {
  cuda::DeviceSelector selector;
  OwnedBlock selected;
  DeviceArray<float> residual;
  DeviceArray<SelectionState> state;

  OnDevice(const std::vector<float>& before, std::int64_t k, double refresh, SelectionState known)
      : selector(static_cast<std::int64_t>(before.size()), k, refresh),
        selected(k),
        residual(before),
        state({known}) {}

  BlockOnCpu Select(const std::vector<float>& gradient, float decay = 1, float scale = 1) {
    DeviceArray<float> on_device(gradient);
    const GradView view{on_device.data(), selector.numel(), DType::kFloat32};
    selector.Select({view, decay, scale, residual.span()}, {3, 1, 2, 7}, state.data(),
                    selected.block(), nullptr);
    return BlockOnCpu(selected.block());
  }
};

/// The same on the CPU, with GTopK::Trim behind it.
Entries SelectOnCpu(const Sparsifier& sparsifier, std::int64_t k, std::vector<float> gradient,
                    float decay, float scale, SelectionState* state, std::vector<float>* residual) {
  const auto numel = static_cast<std::int64_t>(residual->size());
  const Feedback feedback{{gradient.data(), numel, DType::kFloat32}, decay, scale, *residual};
  const std::int64_t room = sparsifier.Room(k, numel);
  SparseBlock block;
  block.Reset(room);
  Selection selection({&feedback, 1}, *residual, 0, 0, room, CpuKernels(), &block);
  sparsifier.Select(k, state, &selection);
  block.Finish(selection.taken());
  block.Finish(CpuKernels().KeepTopK(k, 0, block.count(), &block, *residual));
  return EntriesOf(block);
}

/// What an exact top-k leaves, and takes.
Entries ExactOnCpu(std::int64_t k, const std::vector<float>& gradient,
                   std::vector<float>* residual) {
  SelectionState none;
  return SelectOnCpu(*MakeSparsifier("top_k", {}), k, gradient, 1, 1, &none, residual);
}

testing::AssertionResult SameState(const SelectionState& a, const SelectionState& b) {
  if (std::memcmp(&a, &b, sizeof(a)) == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << a.threshold << ", " << a.growth << ", " << a.tail_index << ", " << a.own << " and "
         << b.threshold << ", " << b.growth << ", " << b.tail_index << ", " << b.own;
}

using CudaSelector = CudaTest;

TEST_F(CudaSelector, StepsAndThresholdsHaveTheBitsOfTheCpu) {
  constexpr std::int64_t kNumel = 12000, kK = 300, kSteps = 7;
  const auto sparsifier = MakeSparsifier("gaussian", {{"refresh", 3}});
  std::vector<float> residual = Gaussian(kNumel, 1);
  SelectionState state{3.1f, 0, 0.15f, 0};  // some 280 exceed it after the first step
  OnDevice device(residual, kK, 3, state);
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> gradient = Gaussian(kNumel, 10 + step);
    const Entries expected = SelectOnCpu(*sparsifier, kK, gradient, 0.9f, 1.1f, &state, &residual);
    const BlockOnCpu selected = device.Select(gradient, 0.9f, 1.1f);
    EXPECT_EQ(Unmarked(selected.entries), expected) << "step " << step;
    EXPECT_TRUE(SameBits(device.residual.Values(), residual)) << "step " << step;
    EXPECT_TRUE(SameState(device.state.Values()[0], state)) << "step " << step;
    EXPECT_GE(selected.header.above, FewestFor(kK)) << "the threshold missed in step " << step;
    EXPECT_EQ(selected.header.flags, 0u);
  }
  EXPECT_GT(state.threshold, 0.0f);
}

TEST_F(CudaSelector, WithoutAThresholdItTakesTheExactTopK) {
  constexpr std::int64_t kNumel = 9001, kK = 100;
  std::vector<float> residual = Awkward(kNumel, 2);
  const std::vector<float> gradient = Awkward(kNumel, 3);
  OnDevice device(residual, kK, 32, {});
  const Entries expected = ExactOnCpu(kK, gradient, &residual);
  const BlockOnCpu selected = device.Select(gradient);
  EXPECT_EQ(Unmarked(selected.entries), expected);
  EXPECT_TRUE(SameBits(device.residual.Values(), residual));
  float smallest = kInf;
  for (const Entry& entry : expected) smallest = std::min(smallest, std::fabs(entry.value));
  EXPECT_EQ(device.state.Values()[0].threshold, smallest);
}

TEST_F(CudaSelector, AThresholdThatMissesGivesTheExactTopK) {
  constexpr std::int64_t kNumel = 5000, kK = 64;
  for (const float wrong : {1e-3f, 1e30f}) {
    std::vector<float> residual = Gaussian(kNumel, 4);
    const std::vector<float> gradient = Gaussian(kNumel, 5);
    OnDevice device(residual, kK, 32, {wrong, 0, 0.2f, 0});
    const Entries expected = ExactOnCpu(kK, gradient, &residual);
    const BlockOnCpu selected = device.Select(gradient);
    EXPECT_EQ(Unmarked(selected.entries), expected);
    EXPECT_TRUE(SameBits(device.residual.Values(), residual));
    EXPECT_EQ(selected.header.flags != 0, wrong < 1);  // kOverflow
    EXPECT_EQ(selected.header.above > kK, wrong < 1);
  }
}

TEST_F(CudaSelector, OfFewNonZerosAllAreTaken) {
  constexpr std::int64_t kNumel = 3000, kK = 64;
  std::vector<float> gradient(kNumel);
  for (std::int64_t i = 0; i < 50; ++i) gradient[i * 31] = static_cast<float>(i + 1);
  OnDevice device(std::vector<float>(kNumel), kK, 32, {});
  const BlockOnCpu selected = device.Select(gradient);
  ASSERT_EQ(selected.entries.size(), 50u);
  for (Index i = 0; i < 50; ++i) {
    EXPECT_EQ(selected.entries[i], (Entry{Marked(31 * i, true), static_cast<float>(i + 1)}));
  }
  EXPECT_EQ(device.residual.Values(), std::vector<float>(kNumel));
  EXPECT_EQ(device.state.Values()[0].threshold, 0.0f);
}

TEST_F(CudaSelector, WhereAllMayGoAllNonZerosGo) {
  const std::vector<float> before = {1, 0, -2, 3};
  OnDevice device(before, 3, 32, {});  // 4k/3 = 4
  BlockOnCpu selected = device.Select({0, 0, 0, 1});
  EXPECT_EQ(Unmarked(selected.entries), (Entries{{0, 1}, {2, -2}, {3, 4}}));
  selected = device.Select({1, 2, 3, 4});
  EXPECT_EQ(Unmarked(selected.entries), (Entries{{1, 2}, {2, 3}, {3, 4}}));  // the 3 largest
  EXPECT_EQ(device.residual.Values(), (std::vector<float>{1, 0, 0, 0}));
}

TEST_F(CudaSelector, TheHeaderSaysWhoAndWhatIsNotFinite) {
  constexpr std::int64_t kNumel = 2000, kK = 50;
  std::vector<float> gradient = Gaussian(kNumel, 6);
  OnDevice device(std::vector<float>(kNumel), kK, 32, {});
  BlockOnCpu selected = device.Select(gradient);
  EXPECT_EQ(selected.header.count, kK);
  EXPECT_EQ(selected.header.bad_rank, kNoRank);
  EXPECT_EQ(selected.header.bucket, 1u);
  EXPECT_EQ(selected.header.step, 2u);
  EXPECT_EQ(selected.header.asked, 7u);
  EXPECT_FALSE(selected.header.IsRefused());
  gradient[7] = kNan;
  gradient[1500] = -kInf;
  selected = device.Select(gradient);
  EXPECT_EQ(selected.header.not_finite, 2u);
  EXPECT_EQ(selected.header.bad_rank, 3);
  EXPECT_TRUE(selected.header.IsRefused());
}

TEST_F(CudaSelector, BadArgumentsAreRefused) {
  EXPECT_THROW(cuda::DeviceSelector(10, 0), Error);
  EXPECT_THROW(cuda::DeviceSelector(10, 11), Error);
  EXPECT_THROW(cuda::DeviceSelector(10, 1, 0.5), Error);
  OnDevice device(std::vector<float>(10), 2, 32, {});
  DeviceArray<float> other(std::vector<float>(11));
  EXPECT_THROW(device.selector.Select({{}, 1, 1, other.span()}, {}, device.state.data(),
                                      device.selected.block(), nullptr),
               Error);
}

// ---- A pass alone -------------------------------------------------------------------------------

using CudaTakeIntoBlock = CudaTest;

TEST_F(CudaTakeIntoBlock, TheFirstEntriesGoAndTheRestStays) {
  constexpr std::int64_t kNumel = 6000;
  const std::vector<float> before = Gaussian(kNumel, 8);
  std::vector<float> gradient = Gaussian(kNumel, 9);
  gradient[17] = kNan;
  for (const float threshold : {0.0f, 2.5f, 100.0f}) {
    const OwnedBlock block(128);
    const std::int64_t capacity = block.block().capacity;
    std::vector<float> expected = before;
    SparseBlock on_cpu;
    on_cpu.Reset(capacity);
    const Tally tally =
        CpuKernels().AccumulateAndTake({{gradient.data(), kNumel, DType::kFloat32}, 1, 1, expected},
                                       threshold, 0, 0, capacity, &on_cpu);
    DeviceArray<float> residual(before), grad(gradient), on_device({threshold});
    const ZeroedScratch<cuda::TakeScratch> scratch(kNumel);
    cuda::LaunchTakeAbove(
        {{grad.data(), kNumel, DType::kFloat32}, 1, 1, residual.span()}, on_device.data(),
        {block.block().indices, block.block().values, capacity, 0}, scratch.get(), nullptr);
    cuda::LaunchSeal(block.block(), {5, 0, 0, 0}, scratch.get(), {}, nullptr, nullptr);
    const BlockOnCpu taken(block.block());
    EXPECT_EQ(taken.entries, EntriesOf(on_cpu, tally.taken));
    EXPECT_TRUE(SameBits(residual.Values(), expected));
    EXPECT_EQ(taken.header.above, tally.above);
    EXPECT_EQ(taken.header.not_finite, 1u);
    EXPECT_EQ(taken.header.bad_rank, 5);
    EXPECT_EQ(taken.header.flags == cuda::kOverflow, tally.above > capacity);
  }
}

}  // namespace
}  // namespace hvd_sparse

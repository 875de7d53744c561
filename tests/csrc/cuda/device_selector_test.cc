/// Selections that run entirely on a device equal those of the CPU, and leave the same thresholds.

#include "csrc/cuda/step/device_selector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/cuda/step/launches.h"
#include "csrc/sparsifiers/prediction.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"
#include "tests/csrc/cuda/bucket_plan.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

/// Returns the entries without survived bits.
Entries Unmarked(Entries entries) {
  for (Entry& entry : entries) entry.index = Position(entry.index);
  return entries;
}

BucketPlan OneSegment(std::int64_t numel, std::int64_t k) { return {{{numel, k}}, {{numel}}}; }

/// A rank that selects on the device, step by step.
struct OnDevice {
  BucketPlan plan;
  cuda::BucketLayout layout;
  cuda::BucketTables tables;
  cuda::DeviceSelector selector;
  OwnedBlock selected;
  DeviceArray<float> residual;
  DeviceArray<SelectionState> states;

  OnDevice(const BucketPlan& plan, const std::vector<float>& before,
           const std::vector<SelectionState>& known)
      : plan(plan),
        layout(plan.OnDevice()),
        tables(layout),
        selector(layout, plan.refresh),
        selected(plan.OnDevice().MaxAsked()),
        residual(before),
        states(known) {}

  OnDevice(const std::vector<float>& before, std::int64_t k, SelectionState known)
      : OnDevice(OneSegment(static_cast<std::int64_t>(before.size()), k), before, {known}) {}

  BlockOnCpu Select(const std::vector<float>& gradient) {
    std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> arrays;
    std::vector<void*> memory;
    for (const Bytes& bytes : InTypes(plan, gradient)) {
      arrays.push_back(std::make_unique<DeviceArray<std::uint8_t>>(bytes));
      memory.push_back(arrays.back()->data());
    }
    const cuda::DeviceLaunch launch =
        LaunchOf(plan, memory, plan.ks(), residual.span(), states.data());
    tables.Update(launch, nullptr);
    selector.Select(launch, tables, {3, 1, 2, 7}, selected.block(), nullptr);
    return BlockOnCpu(selected.block());
  }
};

/// Selects like OnDevice, but on the CPU: each segment has a sparsifier of its own, and GTopK::Trim
/// follows. All gradients are float32 and none spans several segments.
Entries SelectOnCpu(const BucketPlan& plan, const std::vector<std::string>& sparsifiers,
                    std::vector<float> gradient, std::vector<SelectionState>* states,
                    std::vector<float>* residual) {
  SparseBlock block;
  block.Reset(4 * plan.numel());
  std::int64_t begin = 0, filled = 0, asked = 0;
  for (std::size_t s = 0; s < plan.segments.size(); ++s) {
    const auto [numel, k] = plan.segments[s];
    const Span<float> own = Span<float>(*residual).Sub(begin, numel);
    const GradView view{gradient.data() + begin, numel, DType::kFloat32};
    const Feedback feedback{view, plan.gradients[s].decay, plan.scale, own};
    SparsifierOptions options;
    if (sparsifiers[s] == "gaussian") options["refresh"] = plan.refresh;
    const auto sparsifier = MakeSparsifier(sparsifiers[s], options);
    Selection selection({&feedback, 1}, own, static_cast<Index>(begin), filled,
                        sparsifier->Room(k, numel), CpuKernels(), &block);
    sparsifier->Select(k, &(*states)[s], &selection);
    filled += selection.taken();
    begin += numel;
    asked += k;
  }
  block.Finish(filled);
  block.Finish(CpuKernels().KeepTopK(asked, 0, filled, &block, *residual));
  return EntriesOf(block);
}

/// Takes an exact top-k on the CPU; returns the entries and updates the residual.
Entries ExactOnCpu(std::int64_t k, const std::vector<float>& gradient,
                   std::vector<float>* residual) {
  std::vector<SelectionState> none(1);
  return SelectOnCpu(OneSegment(static_cast<std::int64_t>(gradient.size()), k), {"top_k"}, gradient,
                     &none, residual);
}

using CudaSelector = CudaTest;

/// Returns a plan of three segments; the first and the last have known thresholds that about k
/// entries exceed.
BucketPlan Three() {
  BucketPlan plan = {{{12000, 300}, {4, 3}, {9000, 200}},
                     {{12000, DType::kFloat32, 0.9f}, {4}, {9000, DType::kFloat32, 0.8f}}};
  plan.refresh = 3;
  plan.scale = 1.1f;
  return plan;
}

TEST_F(CudaSelector, StepsAndThresholdsHaveTheBitsOfTheCpu) {
  const BucketPlan plan = Three();
  std::vector<float> residual = Gaussians(plan.numel(), 1);
  std::vector<SelectionState> states = {{3.1f, 0, 0.15f, 0}, {}, {3.1f, 0, 0.15f, 0}};
  OnDevice device(plan, residual, states);
  bool trims = false;
  for (int step = 0; step < 7; ++step) {
    const std::vector<float> gradient = Gaussians(plan.numel(), 10 + step);
    const Entries expected =
        SelectOnCpu(plan, {"gaussian", "gaussian", "gaussian"}, gradient, &states, &residual);
    const BlockOnCpu selected = device.Select(gradient);
    EXPECT_EQ(Unmarked(selected.entries), expected) << "step " << step;
    EXPECT_TRUE(SameBits(device.residual.Values(), residual)) << "step " << step;
    EXPECT_TRUE(SameStates(device.states.Values(), states)) << "step " << step;
    EXPECT_EQ(selected.header.flags, 0u);
    trims |= selected.header.above > 300 * 4 / 3 + 4 + 200 * 4 / 3;
  }
  EXPECT_TRUE(trims);  // some segment had more than 4k/3 candidates
  EXPECT_GT(states[0].threshold, 0.0f);
  EXPECT_GT(states[2].threshold, 0.0f);
}

TEST_F(CudaSelector, ManyCandidatesOfASegmentAreTrimmedAsOnTheCpu) {
  BucketPlan plan = OneSegment(20000, 3200);
  plan.refresh = 2;
  std::vector<float> residual = Gaussians(plan.numel(), 3);
  std::vector<SelectionState> states = {{1.9f, 0, 0.15f, 0}};
  OnDevice device(plan, residual, states);
  unsigned most = 0;
  for (int step = 0; step < 4; ++step) {
    const std::vector<float> gradient = Gaussians(plan.numel(), 30 + step);
    const Entries expected = SelectOnCpu(plan, {"gaussian"}, gradient, &states, &residual);
    const BlockOnCpu selected = device.Select(gradient);
    EXPECT_EQ(Unmarked(selected.entries), expected) << "step " << step;
    EXPECT_TRUE(SameBits(device.residual.Values(), residual)) << "step " << step;
    EXPECT_TRUE(SameStates(device.states.Values(), states)) << "step " << step;
    most = std::max(most, selected.header.above);
  }
  EXPECT_GT(most, 4096u);  // more than 512 threads count in one turn
  EXPECT_LE(most, 6656u);
}

TEST_F(CudaSelector, ThresholdsMissOneByOne) {
  const BucketPlan plan = Three();
  for (const float wrong : {1e-3f, 1e30f}) {
    for (const int missing : {0, 2}) {
      std::vector<float> residual = Gaussians(plan.numel(), 2);
      std::vector<SelectionState> states = {{3.1f, 0, 0.15f, 0}, {}, {3.1f, 0, 0.15f, 0}};
      states[missing].threshold = wrong;
      OnDevice device(plan, residual, states);
      std::vector<std::string> sparsifiers(3, "gaussian");
      sparsifiers[missing] = "top_k";
      const std::vector<float> gradient = Gaussians(plan.numel(), 3);
      states[missing] = {};
      const Entries expected = SelectOnCpu(plan, sparsifiers, gradient, &states, &residual);
      const BlockOnCpu selected = device.Select(gradient);
      EXPECT_EQ(Unmarked(selected.entries), expected);
      EXPECT_TRUE(SameBits(device.residual.Values(), residual));
      EXPECT_EQ(selected.header.flags, wrong < 1 ? +cuda::kOverflow : 0u);
      std::vector<SelectionState> learned = device.states.Values();
      EXPECT_EQ(learned[missing].threshold, states[missing].threshold);
      learned[missing] = states[missing];  // top_k does not update the rest of a state
      EXPECT_TRUE(SameStates(learned, states));
    }
  }
}

TEST_F(CudaSelector, WithoutAThresholdItTakesTheExactTopK) {
  constexpr std::int64_t kNumel = 9001, kK = 100;
  std::vector<float> residual = Awkward(kNumel, 2);
  const std::vector<float> gradient = Awkward(kNumel, 3);
  OnDevice device(residual, kK, {});
  const Entries expected = ExactOnCpu(kK, gradient, &residual);
  const BlockOnCpu selected = device.Select(gradient);
  EXPECT_EQ(Unmarked(selected.entries), expected);
  EXPECT_TRUE(SameBits(device.residual.Values(), residual));
  float smallest = kInf;
  for (const Entry& entry : expected) smallest = std::min(smallest, std::fabs(entry.value));
  EXPECT_EQ(device.states.Values()[0].threshold, smallest);
}

TEST_F(CudaSelector, AThresholdThatMissesGivesTheExactTopK) {
  constexpr std::int64_t kNumel = 5000, kK = 64;
  for (const float wrong : {1e-3f, 1e30f}) {
    std::vector<float> residual = Gaussians(kNumel, 4);
    const std::vector<float> gradient = Gaussians(kNumel, 5);
    OnDevice device(residual, kK, {wrong, 0, 0.2f, 0});
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
  OnDevice device(std::vector<float>(kNumel), kK, {});
  const BlockOnCpu selected = device.Select(gradient);
  ASSERT_EQ(selected.entries.size(), 50u);
  for (Index i = 0; i < 50; ++i) {
    EXPECT_EQ(selected.entries[i], (Entry{Marked(31 * i, true), static_cast<float>(i + 1)}));
  }
  EXPECT_EQ(device.residual.Values(), std::vector<float>(kNumel));
  EXPECT_EQ(device.states.Values()[0].threshold, 0.0f);
}

TEST_F(CudaSelector, WhereAllMayGoAllNonZerosGo) {
  const std::vector<float> before = {1, 0, -2, 3};
  OnDevice device(before, 3, {});  // 4k/3 = 4
  BlockOnCpu selected = device.Select({0, 0, 0, 1});
  EXPECT_EQ(Unmarked(selected.entries), (Entries{{0, 1}, {2, -2}, {3, 4}}));
  selected = device.Select({1, 2, 3, 4});
  EXPECT_EQ(Unmarked(selected.entries), (Entries{{1, 2}, {2, 3}, {3, 4}}));  // the 3 largest
  EXPECT_EQ(device.residual.Values(), (std::vector<float>{1, 0, 0, 0}));
}

TEST_F(CudaSelector, TheHeaderSaysWhoAndWhatIsNotFinite) {
  constexpr std::int64_t kNumel = 2000, kK = 50;
  std::vector<float> gradient = Gaussians(kNumel, 6);
  OnDevice device(std::vector<float>(kNumel), kK, {});
  BlockOnCpu selected = device.Select(gradient);
  EXPECT_EQ(selected.header.count, kK);
  EXPECT_TRUE(selected.header.verdict.IsFinite());
  EXPECT_EQ(selected.header.bucket, 1u);
  EXPECT_EQ(selected.header.step, 2u);
  EXPECT_EQ(selected.header.asked, 7u);
  EXPECT_FALSE(selected.header.IsRefused());
  gradient[7] = kNan;
  gradient[1500] = -kInf;
  selected = device.Select(gradient);
  EXPECT_EQ(selected.header.not_finite, 2u);
  EXPECT_EQ(selected.header.verdict, Verdict::BadGradient(3));
  EXPECT_TRUE(selected.header.IsRefused());
}

// ---- A pass alone -------------------------------------------------------------------------------

using CudaFeedbackAndTake = CudaTest;

TEST_F(CudaFeedbackAndTake, EntriesOfEachSegmentGoWhileThereIsRoomAndTheRestStays) {
  const BucketPlan plan = {{{6000, 10}, {5000, 20}}, {{6000}, {5000}}};
  const std::vector<float> before = Gaussians(plan.numel(), 8);
  std::vector<float> gradient = Gaussians(plan.numel(), 9);
  gradient[17] = kNan;
  const cuda::BucketLayout layout(plan.OnDevice());
  for (const float threshold : {0.0f, 2.5f, 100.0f}) {
    std::vector<float> expected = before;
    DeviceArray<float> residual(before), grad(gradient);
    cuda::DeviceLaunch launch;
    launch.gradients = launch.outputs = {{grad.data(), 6000}, {grad.data() + 6000, 5000}};
    launch.decays = {1, 1};
    launch.ks = plan.ks();
    cuda::BucketTables tables(layout);
    tables.Update(launch, nullptr);
    cuda::SelectionArgs work;
    const cuda::DeviceBytes zeros(
        cuda::SizeOfAll([&](cuda::Divider* divider) { work.DivideZeros(layout, divider); }));
    const cuda::DeviceBytes rest(
        cuda::SizeOfAll([&](cuda::Divider* divider) { work.DivideRest(layout, divider); }));
    cuda::Divider divided(zeros.get()), others(rest.get());
    work.DivideZeros(layout, &divided);
    work.DivideRest(layout, &others);
    zeros.Clear(nullptr);
    const std::vector<float> tried(2, threshold);
    CopyBytes(work.tried, tried.data(), sizeof(float) * 2);
    work.bucket = tables.view();
    work.residual = residual.data();
    cuda::LaunchFeedbackAndTake(work, nullptr);

    cuda::Check(cudaDeviceSynchronize(), "finish");
    cuda::SegmentPass passes[2];
    cuda::BucketPass pass;
    CopyBytes(passes, work.segments, sizeof(passes));
    CopyBytes(&pass, work.pass, sizeof(pass));
    std::vector<float> actual = residual.Values();
    std::int64_t begin = 0;
    bool overflows = false;
    for (int s = 0; s < 2; ++s) {
      const std::int64_t numel = plan.segments[s].numel, room = 2 * plan.segments[s].max_k + 256;
      SparseBlock on_cpu;
      on_cpu.Reset(room);
      const Span<float> own = Span<float>(expected).Sub(begin, numel);
      const Tally tally =
          TakeAbove(CpuKernels(), {{gradient.data() + begin, numel, DType::kFloat32}, 1, 1, own},
                    threshold, {room, static_cast<Index>(begin)}, &on_cpu);
      EXPECT_EQ(passes[s].above, tally.above);
      ASSERT_EQ(passes[s].taken, tally.taken);
      std::vector<Index> indices(tally.taken);
      std::vector<float> values(tally.taken);
      const Index candidates = layout.segments[s].candidates;
      CopyBytes(indices.data(), work.indices + candidates, sizeof(Index) * tally.taken);
      CopyBytes(values.data(), work.values + candidates, sizeof(float) * tally.taken);
      Entries taken;
      for (std::int64_t i = 0; i < tally.taken; ++i) taken.push_back({indices[i], values[i]});
      if (tally.above <= room) {
        EXPECT_EQ(taken, EntriesOf(on_cpu, tally.taken));
      }
      for (const Entry& entry : taken) {
        EXPECT_EQ(FloatBits(actual[entry.index]), 0u);
        EXPECT_GT(std::fabs(entry.value), threshold);
        actual[entry.index] = entry.value;
      }
      CpuKernels().PutBack(on_cpu, 0, tally.taken, expected);
      overflows |= tally.above > room;
      begin += numel;
    }
    EXPECT_TRUE(SameBits(actual, expected));
    EXPECT_EQ(pass.not_finite, 1u);
    EXPECT_EQ(pass.flags, overflows ? +cuda::kOverflow : 0u);
  }
}

}  // namespace
}  // namespace hvd_sparse

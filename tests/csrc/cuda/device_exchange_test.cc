/// Steps that run entirely on the device have the bits of those on the CPU, and keep the same laws,
/// for buckets of several segments and gradients.

#include "csrc/cuda/step/device_exchange.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/csrc/cuda/bucket_programs.h"

namespace hvd_sparse {
namespace {

using CudaDeviceExchange = CudaTest;

TEST_F(CudaDeviceExchange, StepsHaveTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(kOneOfAll, {1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_F(CudaDeviceExchange, SoTheyHaveWhereGradientsAndSegmentsAreCutByEachOther) {
  ExpectTheBitsOfTheCpu(kCut, {1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_F(CudaDeviceExchange, SoTheyHaveWhereSegmentsAreOfVeryDifferentSizes) {
  ExpectTheBitsOfTheCpu(kOfVeryDifferentSizes, {1, 2, 3, 8});
}

TEST_F(CudaDeviceExchange, SoTheyHaveWithSlackAndScalesThatRound) {
  for (const BucketPlan& plan : {kOneOfAll, kCut}) {
    ExpectTheBitsOfTheCpu(Rounding(plan), {1, 3, 4, 6});
  }
}

TEST_F(CudaDeviceExchange, SoTheyHaveWhileTheKsChange) {
  for (const int ranks : {1, 3}) {
    Program program(kCut, ranks, 4);
    program.forgets = true;
    program.ks = {{20, 0, 1, 19}, {5, 0, 1, 1}, {5, 0, 1, 1}, {7, 0, 1, 15}};
    ExpectSame(OnDevice(program), OnCpu(program, "top_k"));
  }
}

TEST_F(CudaDeviceExchange, StepsWithThresholdsHaveTheBitsOfTheCpu) {
  for (const int ranks : {1, 2, 5}) ExpectTheBitsOfGaussian(WithThresholds(ranks, 7));
}

// ---- Nothing is lost ----------------------------------------------------------------------------

TEST_F(CudaDeviceExchange, NothingIsLostWhileThresholdsAreFollowed) {
  BucketPlan plan = kCut;
  for (auto& gradient : plan.gradients) gradient.type = DType::kFloat32;
  for (const int ranks : {1, 3, 4, 8}) ExpectNothingIsLost(Program(plan, ranks, 6));
  ExpectNothingIsLost(Program(kOneOfAll, 3, 4));
}

// ---- Steps that are not applied -----------------------------------------------------------------

TEST_F(CudaDeviceExchange, AGradientThatIsNotFiniteIsKnownToAllAndNothingIsApplied) {
  for (const int ranks : {1, 3, 6}) {
    for (const int bad : {0, ranks - 1}) {
      SCOPED_TRACE(testing::Message() << "rank " << bad << " of " << ranks);
      Program program(kCut, ranks, 2);
      program.forgets = true;
      program.gradients[0][bad][11] = kNan;
      program.gradients[0][ranks - 1][900] = -kInf;  // of float16
      const Steps after = OnDevice(program);
      ExpectRefused(program, after);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(after[rank][0].header.verdict, Verdict::BadGradient(bad));
        EXPECT_EQ(after[rank][0].header.not_finite, 2u);
        EXPECT_FALSE(after[rank][1].is_refused);  // the next step is not affected
      }
      ExpectSame(after, OnCpu(program, "top_k"));
    }
  }
}

/// Expects a step to be refused when the sum of two ranks' entries exceeds the gradient's type.
void ExpectSumRefused(int ranks, std::int64_t place, float value) {
  SCOPED_TRACE(testing::Message() << value << " of " << ranks << " ranks");
  Program program(kCut, ranks, 2);
  program.forgets = true;
  program.residuals.assign(program.residuals.size(), std::vector<float>(program.plan.numel()));
  program.gradients[0][0][place] = program.gradients[0][ranks - 1][place] = value;
  // The second step cancels the first one's values, which are in its residual.
  program.gradients[1][0][place] = program.gradients[1][ranks - 1][place] = -value;
  const Steps after = OnDevice(program);
  ExpectRefused(program, after);
  for (const auto& of_rank : after) {
    EXPECT_EQ(of_rank[0].header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
    EXPECT_TRUE(of_rank[0].header.verdict.IsFinite());
    EXPECT_FALSE(of_rank[1].is_refused);
  }
  ExpectSame(after, OnCpu(program, "top_k"));
}

TEST_F(CudaDeviceExchange, ASumThatIsNotFiniteIsKnownToAllAndNothingIsApplied) {
  for (const int ranks : {2, 3, 4, 6}) ExpectSumRefused(ranks, 77, kMax);
}

TEST_F(CudaDeviceExchange, SoIsASumThatANarrowGradientCannotHold) {
  for (const int ranks : {2, 5}) ExpectSumRefused(ranks, 400, 64000);
}

TEST_F(CudaDeviceExchange, RanksThatDisagreeAllLearnOfIt) {
  for (const int ranks : {2, 5, 8}) {
    for (const int other : {0, ranks - 1}) {
      const Program program(kCut, ranks, 1);
      Steps after(static_cast<std::size_t>(ranks));
      OnDeviceRanks(ranks, [&](LoopbackTransport& transport) {
        const int r = transport.Rank();
        RankOnDevice rank(program.plan, program.BeforeOf(r), &transport, r == other ? 1 : 0);
        after[r] = program.Run(&rank, r);
      });
      ExpectRefused(program, after);
      for (const auto& of_rank : after) {
        EXPECT_EQ(of_rank[0].header.flags, static_cast<std::uint32_t>(cuda::kDisagree));
      }
    }
  }
}

// ---- Arguments ----------------------------------------------------------------------------------

TEST_F(CudaDeviceExchange, BucketsThatCannotBeAreRefused) {
  OnDeviceRanks(1, [](LoopbackTransport& transport) {
    const auto make = [&](const BucketSpec& spec) { cuda::DeviceExchange(spec, 0, &transport); };
    EXPECT_THROW(make(SpecOf({{10, 11}}, {10})), Error);
    EXPECT_THROW(make(SpecOf({{10, 0}}, {10})), Error);
    EXPECT_THROW(make(SpecOf({{10, 1}}, {9})), Error);
    EXPECT_THROW(make(SpecOf({{10, 1}}, {11, -1})), Error);
    EXPECT_THROW(make(SpecOf({{0, 0}}, {0})), Error);
    EXPECT_THROW(make(SpecOf({}, {})), Error);
    EXPECT_THROW(make(SpecOf({{10, 1}}, {10}, 0.5)), Error);
    EXPECT_THROW(make(SpecOf({{10, 1}}, {10}, kInf)), Error);
  });
}

TEST_F(CudaDeviceExchange, LaunchesThatDoNotFitAreRefused) {
  OnDeviceRanks(1, [](LoopbackTransport& transport) {
    const BucketSpec spec = SpecOf({{6, 2}, {0, 0}, {4, 1}}, {10});
    cuda::DeviceExchange exchange(spec, 0, &transport);
    std::vector<float> memory(10);
    SelectionState states[3];
    cuda::DeviceLaunch fitting;
    fitting.residual = fitting.velocity = memory;
    fitting.gradients = fitting.outputs = {{memory.data(), 10, DType::kFloat32}};
    fitting.decays = {1};
    fitting.ks = {2, 7, 1};
    fitting.states = {states, 3};
    cuda::CheckStep(spec, fitting);
    const auto refuses = [&](const std::function<void(cuda::DeviceLaunch*)>& spoil) {
      cuda::DeviceLaunch launch = fitting;
      spoil(&launch);
      EXPECT_THROW(exchange.Run(launch, nullptr), Error);
    };
    refuses([](auto* launch) { launch->residual.size = 9; });
    refuses([](auto* launch) { launch->velocity.size = 11; });
    refuses([](auto* launch) { launch->momentum = -0.1f; });
    refuses([](auto* launch) { launch->momentum = 1; });
    refuses([](auto* launch) { launch->momentum = kNan; });
    refuses([](auto* launch) { launch->gradients[0].numel = 9; });
    refuses([](auto* launch) { launch->gradients[0].data = nullptr; });
    refuses([](auto* launch) { launch->gradients[0].dtype = static_cast<DType>(4); });
    refuses([](auto* launch) { launch->outputs.clear(); });
    refuses([](auto* launch) { launch->outputs[0].numel = 11; });
    refuses([](auto* launch) { launch->decays = {kNan}; });
    refuses([](auto* launch) { launch->decays = {1, 1}; });
    refuses([](auto* launch) { launch->ks = {2, 1}; });
    refuses([](auto* launch) { launch->ks = {3, 7, 1}; });
    refuses([](auto* launch) { launch->ks = {2, 7, 0}; });
    refuses([](auto* launch) { launch->states.data = nullptr; });
    refuses([](auto* launch) { launch->states.size = 2; });
    refuses([](auto* launch) { launch->output_scale = 0; });
    refuses([](auto* launch) { launch->output_scale = kInf; });
    EXPECT_EQ(memory, std::vector<float>(10));
  });
}

}  // namespace
}  // namespace hvd_sparse

/// Steps that never leave the device have the bits of those on the CPU, and keep the same laws:
/// buckets of several segments and gradients.

#include "csrc/cuda/device_exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/bucket_plan.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {
namespace {

using ByRank = std::vector<std::vector<float>>;
using Ks = std::vector<std::int64_t>;
using Steps = std::vector<std::vector<AfterStep>>;  // by rank and step

const BucketPlan kOneOfAll = {{{1500, 40}}, {{1500}}};

/// Gradients that reach over segments, segments over gradients, empty ones of both.
const BucketPlan kCut = {
    {{700, 20}, {0, 0}, {300, 1}, {500, 19}},
    {{100}, {0}, {901, DType::kFloat16}, {7, DType::kBFloat16}, {492, DType::kFloat64}, {0}}};

const BucketPlan kOfVeryDifferentSizes = {
    {{4200, 30}, {3, 2}, {1, 1}, {64, 8}, {0, 1}, {5001, 60}},
    {{2100}, {2101, DType::kBFloat16}, {2}, {1}, {64, DType::kFloat16}, {5001}}};

/// Whole numbers, of which the ranks have many indices and magnitudes in common. Number types of 16
/// bits hold them, and sums of eight.
ByRank WholeNumbers(const BucketPlan& plan, int ranks, int seed) {
  std::mt19937 random(seed);
  ByRank values(static_cast<std::size_t>(ranks), std::vector<float>(plan.numel()));
  for (std::int64_t i = 0; i < plan.numel(); ++i) {
    const int common = random() % 4 == 0 ? static_cast<int>(random() % 41) - 20 : 0;
    for (auto& of_rank : values) {
      of_rank[i] = static_cast<float>(common + static_cast<int>(random() % 9) - 4);
    }
  }
  return values;
}

/// What ranks do: each of them from the same thresholds on.
struct Program {
  BucketPlan plan;
  ByRank residuals;
  std::vector<SelectionState> states;
  std::vector<ByRank> gradients;  // by step
  std::vector<Ks> ks;             // by step
  bool forgets = false;           // what it has learned, before each step

  Program(const BucketPlan& plan, int ranks, int steps)
      : plan(plan),
        residuals(WholeNumbers(plan, ranks, 1)),
        states(plan.segments.size()),
        ks(static_cast<std::size_t>(steps), plan.ks()) {
    for (int step = 0; step < steps; ++step)
      gradients.push_back(WholeNumbers(plan, ranks, 2 + step));
  }
  int ranks() const { return static_cast<int>(residuals.size()); }

  template <typename Rank>
  std::vector<AfterStep> Run(Rank* rank, int r) const {
    std::vector<AfterStep> after;
    for (std::size_t step = 0; step < gradients.size(); ++step) {
      if (forgets) rank->Forget();
      after.push_back(rank->Step(gradients[step][r], ks[step]));
    }
    return after;
  }
};

Steps OnDevice(const Program& program) {
  Steps after(program.residuals.size());
  OnDeviceRanks(program.ranks(), [&](LoopbackTransport& transport) {
    const int r = transport.Rank();
    RankOnDevice rank(program.plan, program.residuals[r], program.states, &transport);
    after[r] = program.Run(&rank, r);
  });
  return after;
}

Steps OnCpu(const Program& program, const char* sparsifier) {
  Steps after(program.residuals.size());
  OnRanks(program.ranks(), [&](Communicator& comm) {
    const int r = comm.Rank();
    RankOnCpu rank(program.plan, program.residuals[r], program.states, &comm, sparsifier);
    after[r] = program.Run(&rank, r);
  });
  return after;
}

void ExpectSame(const Steps& actual, const Steps& expected) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(actual[rank].size(), expected[rank].size());
    for (std::size_t step = 0; step < expected[rank].size(); ++step) {
      SCOPED_TRACE(testing::Message()
                   << "rank " << rank << " of " << expected.size() << ", step " << step);
      const AfterStep &own = actual[rank][step], &other = expected[rank][step];
      EXPECT_TRUE(SameBits(Span<const float>(own.residual), Span<const float>(other.residual)));
      EXPECT_EQ(own.is_refused, other.is_refused);
      if (!other.is_refused) {
        EXPECT_EQ(own.outputs, other.outputs);
      }
      EXPECT_EQ(own.selected, other.selected);
      EXPECT_EQ(own.reduced, other.reduced);
      EXPECT_EQ(own.header.step, step);
    }
  }
}

/// Steps without a threshold, which take the exact top-k.
void ExpectTheBitsOfTheCpu(BucketPlan plan, const std::vector<int>& ranks) {
  for (const int count : ranks) {
    Program program(plan, count, 2);
    program.forgets = true;
    ExpectSame(OnDevice(program), OnCpu(program, "top_k"));
  }
}

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
  for (BucketPlan plan : {kOneOfAll, kCut}) {
    plan.slack = 1.7;
    plan.output_scale = 0.3f;
    plan.scale = 0.7f;
    plan.gradients.back().decay = plan.gradients.front().decay = 0.9f;
    ExpectTheBitsOfTheCpu(plan, {1, 3, 4, 6});
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

/// Thresholds that some k entries exceed, from the first step on; refreshed in every third one.
Program WithThresholds(int ranks, int steps) {
  BucketPlan plan = {
      {{12000, 300}, {4, 3}, {0, 0}, {6001, 150}},
      {{5000, DType::kFloat32, 0.9f}, {7001, DType::kFloat32, 0.9f}, {4, DType::kFloat16}, {6000}}};
  plan.refresh = 3;
  plan.output_scale = 1.0f / static_cast<float>(ranks);
  Program program(plan, ranks, 0);
  program.states[0] = {2.9f, 0, 0.15f, 0};
  program.states[3] = {3.1f, 0, 0.15f, 0};
  program.ks.assign(static_cast<std::size_t>(steps), plan.ks());
  program.gradients.resize(static_cast<std::size_t>(steps));
  for (int rank = 0; rank < ranks; ++rank) {
    program.residuals[rank] = Gaussians(plan.numel(), 1 + rank);
    for (int step = 0; step < steps; ++step) {
      program.gradients[step].push_back(Gaussians(plan.numel(), 100 * step + 10 + rank));
    }
  }
  return program;
}

TEST_F(CudaDeviceExchange, StepsWithThresholdsHaveTheBitsOfTheCpu) {
  for (const int ranks : {1, 2, 5}) {
    const Program program = WithThresholds(ranks, 7);
    const Steps on_device = OnDevice(program), on_cpu = OnCpu(program, "gaussian");
    ExpectSame(on_device, on_cpu);
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::size_t step = 0; step < on_cpu[rank].size(); ++step) {
        EXPECT_TRUE(SameStates(on_device[rank][step].states, on_cpu[rank][step].states))
            << "rank " << rank << ", step " << step;
        EXPECT_EQ(on_device[rank][step].header.flags, 0u);  // no threshold was too low
      }
    }
  }
}

// ---- Nothing is lost ----------------------------------------------------------------------------

/// Whole numbers, so sums are exact. All gradients are of float32.
void ExpectNothingIsLost(const Program& program) {
  SCOPED_TRACE(program.ranks());
  const std::int64_t numel = program.plan.numel();
  const Steps after = OnDevice(program);
  ByRank before = program.residuals;
  for (std::size_t step = 0; step < program.gradients.size(); ++step) {
    std::vector<float> total(numel), expected(numel), output(numel);
    std::int64_t i = 0;
    for (const Bytes& bytes : after[0][step].outputs) {
      std::memcpy(output.data() + i, bytes.data(), bytes.size());
      i += static_cast<std::int64_t>(bytes.size() / sizeof(float));
    }
    for (int rank = 0; rank < program.ranks(); ++rank) {
      const AfterStep& own = after[rank][step];
      EXPECT_EQ(own.outputs, after[0][step].outputs);
      EXPECT_LE(own.reduced, program.plan.OnDevice().MaxAsked());
      for (i = 0; i < numel; ++i) {
        expected[i] += before[rank][i] + program.gradients[step][rank][i];
        total[i] += own.residual[i];
      }
      before[rank] = own.residual;
    }
    for (i = 0; i < numel; ++i) total[i] += output[i];
    EXPECT_EQ(total, expected);
    EXPECT_NE(output, std::vector<float>(numel));
  }
}

TEST_F(CudaDeviceExchange, NothingIsLostWhileThresholdsAreFollowed) {
  BucketPlan plan = kCut;
  for (auto& gradient : plan.gradients) gradient.type = DType::kFloat32;
  for (const int ranks : {1, 3, 4, 8}) ExpectNothingIsLost(Program(plan, ranks, 6));
  ExpectNothingIsLost(Program(kOneOfAll, 3, 4));
}

// ---- Steps that are not applied -----------------------------------------------------------------

/// Whether the first step has left the gradients alone, and the residuals with all that was finite.
void ExpectRefused(const Program& program, const Steps& after) {
  for (int rank = 0; rank < program.ranks(); ++rank) {
    std::vector<float> expected = program.residuals[rank];
    const std::vector<float>& gradient = program.gradients[0][rank];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::isfinite(gradient[i])) expected[i] += gradient[i];
    }
    const AfterStep& own = after[rank][0];
    EXPECT_TRUE(SameBits(Span<const float>(own.residual), Span<const float>(expected)))
        << "rank " << rank;
    EXPECT_EQ(own.outputs, InTypes(program.plan, gradient)) << "rank " << rank;
    EXPECT_TRUE(own.is_refused);
  }
}

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
        EXPECT_EQ(after[rank][0].header.bad_rank, bad);
        EXPECT_EQ(after[rank][0].header.not_finite, 2u);
        EXPECT_FALSE(after[rank][1].is_refused);  // the next step is a step like any other
      }
      ExpectSame(after, OnCpu(program, "top_k"));
    }
  }
}

/// Entries of two ranks whose sum the gradient cannot hold.
void ExpectSumRefused(int ranks, std::int64_t place, float value) {
  SCOPED_TRACE(testing::Message() << value << " of " << ranks << " ranks");
  Program program(kCut, ranks, 2);
  program.forgets = true;
  program.residuals.assign(program.residuals.size(), std::vector<float>(program.plan.numel()));
  program.gradients[0][0][place] = program.gradients[0][ranks - 1][place] = value;
  // The second step has the first one's values in its residual.
  program.gradients[1][0][place] = program.gradients[1][ranks - 1][place] = -value;
  const Steps after = OnDevice(program);
  ExpectRefused(program, after);
  for (const auto& of_rank : after) {
    EXPECT_EQ(of_rank[0].header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
    EXPECT_EQ(of_rank[0].header.bad_rank, kNoRank);
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
        RankOnDevice rank(program.plan, program.residuals[r], program.states, &transport,
                          r == other ? 1 : 0);
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
    const auto make = [&](const cuda::DeviceBucket& bucket) {
      cuda::DeviceExchange(bucket, &transport);
    };
    EXPECT_THROW(make({{{10, 11}}, {10}}), Error);
    EXPECT_THROW(make({{{10, 0}}, {10}}), Error);
    EXPECT_THROW(make({{{10, 1}}, {9}}), Error);
    EXPECT_THROW(make({{{10, 1}}, {11, -1}}), Error);
    EXPECT_THROW(make({{{0, 0}}, {0}}), Error);
    EXPECT_THROW(make({{}, {}}), Error);
    EXPECT_THROW(make({{{10, 1}}, {10}, 0.5}), Error);
    EXPECT_THROW(make({{{10, 1}}, {10}, kInf}), Error);
    EXPECT_THROW(make({{{10, 1}}, {10}, 1, 0.5}), Error);
  });
}

TEST_F(CudaDeviceExchange, LaunchesThatDoNotFitAreRefused) {
  OnDeviceRanks(1, [](LoopbackTransport& transport) {
    cuda::DeviceExchange exchange({{{6, 2}, {0, 0}, {4, 1}}, {10}}, &transport);
    std::vector<float> memory(10);
    SelectionState states[3];
    cuda::DeviceLaunch fitting;
    fitting.residual = memory;
    fitting.gradients = fitting.outputs = {{memory.data(), 10, DType::kFloat32}};
    fitting.decays = {1};
    fitting.ks = {2, 7, 1};
    fitting.states = states;
    cuda::CheckStep(cuda::DeviceBucket{{{6, 2}, {0, 0}, {4, 1}}, {10}}, fitting);
    const auto refuses = [&](const std::function<void(cuda::DeviceLaunch*)>& spoil) {
      cuda::DeviceLaunch launch = fitting;
      spoil(&launch);
      EXPECT_THROW(exchange.Run(launch, nullptr), Error);
    };
    refuses([](auto* launch) { launch->residual.size = 9; });
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
    refuses([](auto* launch) { launch->states = nullptr; });
    refuses([](auto* launch) { launch->output_scale = 0; });
    refuses([](auto* launch) { launch->output_scale = kInf; });
    EXPECT_EQ(memory, std::vector<float>(10));
  });
}

}  // namespace
}  // namespace hvd_sparse

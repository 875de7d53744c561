/// Programs of steps over buckets, run on the device and on the CPU to be compared.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PROGRAMS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PROGRAMS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/bucket_plan.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {

using ByRank = std::vector<std::vector<float>>;
using Ks = std::vector<std::int64_t>;
using Steps = std::vector<std::vector<AfterStep>>;  // by rank and step

inline const BucketPlan kOneOfAll = {{{1500, 40}}, {{1500}}};

/// A plan whose gradients span several segments and segments several gradients; some are empty.
inline const BucketPlan kCut = {
    {{700, 20}, {0, 0}, {300, 1}, {500, 19}},
    {{100}, {0}, {901, DType::kFloat16}, {7, DType::kBFloat16}, {492, DType::kFloat64}, {0}}};

inline const BucketPlan kOfVeryDifferentSizes = {
    {{4200, 30}, {3, 2}, {1, 1}, {64, 8}, {0, 1}, {5001, 60}},
    {{2100}, {2101, DType::kBFloat16}, {2}, {1}, {64, DType::kFloat16}, {5001}}};

/// Returns the plan with a slack and factors that cause rounding.
inline BucketPlan Rounding(BucketPlan plan) {
  plan.slack = 1.7;
  plan.output_scale = 0.3f;
  plan.scale = 0.7f;
  plan.gradients.back().decay = plan.gradients.front().decay = 0.9f;
  return plan;
}

/// Returns whole numbers, many of whose indices and magnitudes the ranks have in common. Number
/// types of 16 bits hold them, and sums of eight of them.
inline ByRank WholeNumbers(const BucketPlan& plan, int ranks, int seed) {
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

/// The steps that ranks run; all start from the same thresholds.
struct Program {
  BucketPlan plan;
  ByRank residuals, velocities;  // velocities: empty unless momentum is corrected
  std::vector<SelectionState> states;
  std::vector<ByRank> gradients;  // by step
  std::vector<Ks> ks;             // by step
  bool forgets = false;           // forget thresholds before each step

  Program(const BucketPlan& plan, int ranks, int steps)
      : plan(plan),
        residuals(WholeNumbers(plan, ranks, 1)),
        velocities(static_cast<std::size_t>(ranks)),
        states(plan.segments.size()),
        ks(static_cast<std::size_t>(steps), plan.ks()) {
    if (plan.momentum > 0) velocities = WholeNumbers(plan, ranks, 1000);
    for (int step = 0; step < steps; ++step)
      gradients.push_back(WholeNumbers(plan, ranks, 2 + step));
  }
  int ranks() const { return static_cast<int>(residuals.size()); }

  Before BeforeOf(int rank) const { return {residuals[rank], velocities[rank], states}; }

  /// Returns what is added to a residual: the gradient, or the velocity updated by it. Gradient
  /// values that are not finite add nothing.
  std::vector<float> Inflow(const std::vector<float>& velocity,
                            const std::vector<float>& gradient) const {
    std::vector<float> inflow(gradient.size());
    for (std::size_t i = 0; i < inflow.size(); ++i) {
      if (!velocity.empty()) inflow[i] = plan.momentum * velocity[i];
      if (std::isfinite(gradient[i])) inflow[i] += gradient[i];
    }
    return inflow;
  }

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

inline Steps OnDevice(const Program& program) {
  Steps after(program.residuals.size());
  OnDeviceRanks(program.ranks(), [&](LoopbackTransport& transport) {
    const int r = transport.Rank();
    RankOnDevice rank(program.plan, program.BeforeOf(r), &transport);
    after[r] = program.Run(&rank, r);
  });
  return after;
}

inline Steps OnCpu(const Program& program, const char* sparsifier) {
  Steps after(program.residuals.size());
  OnRanks(program.ranks(), [&](Communicator& comm) {
    const int r = comm.Rank();
    RankOnCpu rank(program.plan, program.BeforeOf(r), &comm, sparsifier);
    after[r] = program.Run(&rank, r);
  });
  return after;
}

inline void ExpectSame(const Steps& actual, const Steps& expected) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(actual[rank].size(), expected[rank].size());
    for (std::size_t step = 0; step < expected[rank].size(); ++step) {
      SCOPED_TRACE(testing::Message()
                   << "rank " << rank << " of " << expected.size() << ", step " << step);
      const AfterStep &own = actual[rank][step], &other = expected[rank][step];
      EXPECT_TRUE(SameBits(Span<const float>(own.residual), Span<const float>(other.residual)));
      EXPECT_TRUE(SameBits(Span<const float>(own.velocity), Span<const float>(other.velocity)));
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

/// Compares steps without a threshold, which take the exact top-k.
inline void ExpectTheBitsOfTheCpu(const BucketPlan& plan, const std::vector<int>& ranks) {
  for (const int count : ranks) {
    Program program(plan, count, 2);
    program.forgets = true;
    ExpectSame(OnDevice(program), OnCpu(program, "top_k"));
  }
}

/// Returns a program whose thresholds some k entries exceed from the first step on; every third
/// step refreshes them.
inline Program WithThresholds(int ranks, int steps) {
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

/// Expects the bits of the CPU, which follows the same thresholds.
inline void ExpectTheBitsOfGaussian(const Program& program) {
  const Steps on_device = OnDevice(program), on_cpu = OnCpu(program, "gaussian");
  ExpectSame(on_device, on_cpu);
  for (int rank = 0; rank < program.ranks(); ++rank) {
    for (std::size_t step = 0; step < on_cpu[rank].size(); ++step) {
      EXPECT_TRUE(SameStates(on_device[rank][step].states, on_cpu[rank][step].states))
          << "rank " << rank << ", step " << step;
      EXPECT_EQ(on_device[rank][step].header.flags, 0u);  // no threshold was too low
    }
  }
}

/// Expects that no value is lost. Whole numbers make sums exact; all gradients are float32.
inline void ExpectNothingIsLost(const Program& program) {
  SCOPED_TRACE(program.ranks());
  const std::int64_t numel = program.plan.numel();
  const Steps after = OnDevice(program);
  ByRank residuals = program.residuals, velocities = program.velocities;
  for (std::size_t step = 0; step < program.gradients.size(); ++step) {
    std::vector<float> total(numel), expected(numel), output(numel);
    std::int64_t i = 0;
    for (const Bytes& bytes : after[0][step].outputs) {
      if (!bytes.empty()) std::memcpy(output.data() + i, bytes.data(), bytes.size());
      i += static_cast<std::int64_t>(bytes.size() / sizeof(float));
    }
    for (int rank = 0; rank < program.ranks(); ++rank) {
      const AfterStep& own = after[rank][step];
      EXPECT_EQ(own.outputs, after[0][step].outputs);
      EXPECT_LE(own.reduced, program.plan.OnDevice().MaxAsked());
      const std::vector<float> inflow =
          program.Inflow(velocities[rank], program.gradients[step][rank]);
      for (i = 0; i < numel; ++i) {
        expected[i] += residuals[rank][i] + inflow[i];
        total[i] += own.residual[i];
      }
      residuals[rank] = own.residual;
      velocities[rank] = own.velocity;
    }
    for (i = 0; i < numel; ++i) total[i] += output[i];
    EXPECT_EQ(total, expected);
    EXPECT_NE(output, std::vector<float>(numel));
  }
}

/// Expects that the first step has left the gradients alone, and has accumulated all finite values
/// in the residuals and velocities.
inline void ExpectRefused(const Program& program, const Steps& after) {
  for (int rank = 0; rank < program.ranks(); ++rank) {
    const std::vector<float>& gradient = program.gradients[0][rank];
    const std::vector<float> inflow = program.Inflow(program.velocities[rank], gradient);
    std::vector<float> expected = program.residuals[rank];
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += inflow[i];
    const AfterStep& own = after[rank][0];
    EXPECT_TRUE(SameBits(Span<const float>(own.residual), Span<const float>(expected)))
        << "rank " << rank;
    if (!own.velocity.empty()) {
      EXPECT_TRUE(SameBits(Span<const float>(own.velocity), Span<const float>(inflow)))
          << "rank " << rank;
    }
    EXPECT_EQ(own.outputs, InTypes(program.plan, gradient)) << "rank " << rank;
    EXPECT_TRUE(own.is_refused);
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PROGRAMS_H_

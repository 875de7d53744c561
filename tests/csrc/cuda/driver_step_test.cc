/// Steps of a driver whose blocks go from device to device, with velocities: they have the bits of
/// the same steps on the CPU and lose nothing, even if a step is ended early.

#include <cstdlib>
#include <utility>

#include "tests/csrc/cuda/moving_ranks.h"
#include "tests/csrc/meeting.h"

namespace hvd_sparse {
namespace {

/// Returns an entry's updated velocity; exact.
float Moved(const Account& one, std::size_t i, float momentum) {
  return kScale * one.gradient[i] + momentum * one.before.velocity[i];
}

/// Returns true if the bucket of entries [begin, end) has not begun, or has lost nothing.
bool Holds(const Account& one, std::int64_t begin, std::int64_t end, float momentum) {
  bool is_untouched = true, has_all = true;
  for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
    const float moved = Moved(one, i, momentum), unsent = kDecay * one.before.residual[i] + moved;
    const float residual = one.after.residual[i], velocity = one.after.velocity[i];
    has_all = has_all && residual == unsent && velocity == moved;
    is_untouched =
        is_untouched && residual == one.before.residual[i] && velocity == one.before.velocity[i];
  }
  return is_untouched || has_all;
}

/// Runs thread ranks whose messages lie on devices, as over a CUDA-aware MPI.
class DriverStepOnDevice : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  }
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }

  static DriverJob JobWith(float momentum, std::int64_t measure_every = 0) {
    return {"gaussian", momentum, measure_every, Route::kRounds};
  }
};

TEST_F(DriverStepOnDevice, HasTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(JobWith(0), {2, 3});
  ExpectTheBitsOfTheCpu(JobWith(0.5f), {2, 3, 4});
  DriverJob keeps = JobWith(0.5f);
  keeps.masks = false;
  ExpectTheBitsOfTheCpu(keeps, {2, 3});
}

TEST_F(DriverStepOnDevice, WhatIsMeasuredHasTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu(JobWith(0.5f, 1), {2, 3});
}

/// Whole numbers, halved now and then: all sums are exact.
class AllOfDriverStepOnDevice : public DriverStepOnDevice,
                                public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Masks, AllOfDriverStepOnDevice, testing::Bool());

TEST_P(AllOfDriverStepOnDevice, ThatTheRanksAddedIsAppliedOrKept) {
  constexpr int kSize = 4, kTimes = 6;
  DriverJob job = JobWith(0.5f);
  job.whole = true;
  job.masks = GetParam();
  std::vector<std::vector<Account>> accounts(kSize);
  const auto bad_in = [](int step) { return step == 3 ? Bad::kSum : Bad::kNothing; };
  OnMovingRanks(kSize, kGpu, job, [&](MovingRank& rank) {
    for (int step = 0; step < kTimes; ++step) {
      accounts[static_cast<std::size_t>(rank.number())].push_back(rank.Step(bad_in(step)));
    }
  });
  for (int step = 0; step < kTimes; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    std::int64_t lost = 0, differ = 0, masked = 0;
    for (std::size_t i = 0; i < kUnsent; ++i) {
      double unsent = 0, kept = 0;
      const float applied = accounts[0][step].applied[i];
      for (const auto& of_rank : accounts) {
        const Account& one = of_rank[step];
        const float moved = Moved(one, i, job.momentum);
        unsent += kDecay * one.before.residual[i] + moved;
        kept += one.after.residual[i];
        if (bad_in(step) == Bad::kNothing) differ += one.applied[i] != applied ? 1 : 0;
        const float velocity = one.after.velocity[i];
        if (velocity == moved) continue;
        ++masked;
        lost += velocity != 0 ? 1 : 0;
      }
      if (bad_in(step) == Bad::kNothing) kept += double{kSize} * applied;
      lost += kept != unsent ? 1 : 0;
    }
    EXPECT_EQ(lost, 0);
    EXPECT_EQ(differ, 0);
    EXPECT_EQ(masked > 0, job.masks && bad_in(step) == Bad::kNothing);
  }
}

TEST_F(DriverStepOnDevice, AStepThatIsEndedKeepsAllThatItTook) {
  DriverJob job = JobWith(0.5f);
  job.whole = true;
  for (const std::vector<int>& ops : {std::vector<int>{0}, {0, 1}}) {
    Meeting meeting(2);
    OnMovingRanks(2, kGpu, job, [&](MovingRank& rank) {
      rank.Step();
      // A rank still in the previous step would lose it.
      meeting.Attend();
      const Account account = rank.EndedStep(ops, &meeting);
      for (const auto& [begin, end] : {std::pair{0, kOne + kTwo}, {kOne + kTwo, kUnsent}}) {
        EXPECT_TRUE(Holds(account, begin, end, job.momentum)) << "from " << begin << " on";
      }
    });
  }
}

}  // namespace
}  // namespace hvd_sparse

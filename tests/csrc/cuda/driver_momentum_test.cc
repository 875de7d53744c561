/// Steps of a driver on a GPU with momentum correction or measurements, whose blocks are copied to
/// the CPU: they have the bits of the same steps on the CPU.

#include <cstdlib>

#include "tests/csrc/cuda/moving_ranks.h"

namespace hvd_sparse {
namespace {

class DriverMomentumOnDevice : public CudaTest {
 protected:
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }
};

TEST_F(DriverMomentumOnDevice, StepsHaveTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu({"gaussian", 0.5f});
}

TEST_F(DriverMomentumOnDevice, StepsWhoseBlocksAreMergedOnDevicesHaveTheBitsOfTheCpu) {
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  ExpectTheBitsOfTheCpu({"top_k", 0.5f, 0, Route::kRounds});
}

TEST_F(DriverMomentumOnDevice, WhatIsMeasuredHasTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu({"gaussian", 0, 1});
  ExpectTheBitsOfTheCpu({"gaussian", 0.5f, 2});
}

TEST_F(DriverMomentumOnDevice, AStepIsMeasuredWhereThatWasAskedForAndItCounts) {
  OnMovingRanks(2, kGpu, {"gaussian", 0.5f, 2}, [](MovingRank& rank) {
    for (const int buckets : {2, 2, 2, 2, 4, 4}) {  // steps 0, 4 are measured, 2 is refused
      rank.Step(rank.driver().engine().steps() == 2 ? Bad::kGradient : Bad::kNothing);
      EXPECT_EQ(rank.measured(), buckets);
    }
  });
}

TEST_F(DriverMomentumOnDevice, RoomIsNeededForWhatIsSentDense) {
  OnMovingRanks(1, kGpu, {"gaussian", 0.5f}, [](MovingRank& rank) {
    EXPECT_EQ(rank.driver().engine().Room(), kAlways);
    rank.SendDense();
    EXPECT_EQ(rank.driver().engine().Room(), kEither + kAlways);
  });
}

}  // namespace
}  // namespace hvd_sparse

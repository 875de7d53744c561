/// Exchanges whose gTop-k goes from device to device over a communicator that accepts device
/// memory: bits of the same steps on the CPU, and statistics.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/devices/devices_for.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/step_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

class CudaMpiExchange : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  }
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }
};

TEST_F(CudaMpiExchange, RoundsHaveTheBitsOfTheCpuForAnyNumberOfRanks) {
  for (int size = 2; size <= 8; ++size) {
    SCOPED_TRACE(size);
    BucketSpec spec = SpecOf({}, "sidco", "gtopk", {});
    spec.collective_options.slack = size % 3 == 0 ? 2.0 : 1.0;
    const auto of_cpu = RunRanks<float>(size, spec);
    spec.device = kGpu;
    const auto over_mpi = RunRanks<float>(size, spec);
    ExpectSameBits(of_cpu, over_mpi);
    for (const StepBits& seen : of_cpu) EXPECT_EQ(seen.Over("MPI"), 0);
    for (const StepBits& seen : over_mpi) EXPECT_EQ(seen.Over("MPI"), kSteps);
  }
}

TEST_F(CudaMpiExchange, StepsHaveTheBitsOfTheCpuForAnyNumberOfRanks) {
  ExpectTheBitsOfTheCpuForAnyNumberOfRanks();
}

TEST_F(CudaMpiExchange, SoTheyHaveWithOtherCollectives) {
  for (const char* const collective : {"allgather", "shard_topk"}) {
    for (const int size : {2, 3, 6}) {
      SCOPED_TRACE(size);
      ExpectTheBitsOfTheCpu<BFloat16>(size, {}, 1, collective);
    }
  }
}

TEST_F(CudaMpiExchange, SoTheyHaveWhereMomentumIsCorrected) { ExpectTheBitsOfTheCpuWithMomentum(); }

TEST_F(CudaMpiExchange, ItsStatisticsSayWhatMessagesWentOver) {
  StepRun run;
  run.steps = 2;
  for (const auto& of_rank : RunSteps<float>(4, StepSpecOf(kGpu), run)) {
    for (const SeenStep& step : of_rank) {
      const BucketStats& stats = step.stats;
      ASSERT_EQ(stats.rounds.size(), 3u);  // two of them compare headers
      const RoundTimes& messages = stats.rounds[2];
      EXPECT_EQ(messages.name, "gtopk, over MPI");
      // Two rounds of 320 entries, as 271 are rounded up, and a header of 32 bytes each.
      EXPECT_EQ(messages.bytes_sent, 2 * (32 + 8 * 320));
      EXPECT_EQ(messages.bytes_received, messages.bytes_sent);
      EXPECT_LE(stats.select_begin, messages.begin);
      EXPECT_LE(messages.begin, messages.end);
      EXPECT_LE(messages.end, stats.exchange_end);
    }
  }
}

// ---- When MPI is used ---------------------------------------------------------------------------

TEST_F(CudaMpiExchange, WithoutTheUsersWishBlocksGoOverTheCpu) {
  StepRun run;
  run.steps = 1;
  for (const char* value : {"0", "1"}) {
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", value, 1);
    const Route route = value[0] == '0' ? Route::kCalls : Route::kRounds;
    for (const auto& of_rank : RunSteps<float>(3, StepSpecOf(kGpu), run)) {
      EXPECT_EQ(of_rank[0].stats.route, route);
    }
  }
}

/// Here the CPU copies messages through memory of its own.
TEST_F(CudaMpiExchange, WhereMessagesCannotLieOnADeviceItIsSaidWhy) {
  OnRanks(2, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    EXPECT_EQ(made.warning,
              "blocks of GPUs go by way of the CPUs, since CUDA-aware MPI is not used: "
              "rank 0: the ranks are not connected by MPI, and nothing else takes memory of GPUs "
              "(with HVD_SPARSE_CUDA_AWARE_MPI=0 no rank tries it)");
  });
}

TEST_F(CudaMpiExchange, WhoInsistsOnItAndCannotHaveItIsRefused) {
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  OnRanks(3, [](Communicator& comm) {
    const Error error = Thrown([&] { ConnectDevices(&comm, kGpu); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_TRUE(Says(error,
                     "HVD_SPARSE_CUDA_AWARE_MPI=1 asks for CUDA-aware MPI, which cannot be "
                     "used: rank 0: the ranks are not connected by MPI"))
        << error.what();
  });
}

/// The ranks disagree, as if the MPI libraries of two machines were built differently.
TEST_F(CudaMpiExchange, OneRankWithoutItKeepsAllFromIt) {
  const auto world = std::make_shared<LoopbackWorld>(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      DeviceLoopback with(world, rank);
      LoopbackCommunicator without(world, rank);
      Communicator* const comm = rank == 1 ? static_cast<Communicator*>(&without) : &with;
      const DeviceConnection made = ConnectDevices(comm, kGpu);
      EXPECT_EQ(made.collectives, nullptr);
      EXPECT_NE(made.warning.find("rank 1: the ranks are not connected by MPI"), std::string::npos);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hvd_sparse

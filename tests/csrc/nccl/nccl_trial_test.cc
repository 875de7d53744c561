/// The trial of NCCL before it is relied on: where it fails on a rank, all go by way of their CPUs,
/// unless one insists; a rank that is lost in it ends the exchange.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/device_agreement.h"
#include "csrc/cuda/transport/mpi_option.h"
#include "csrc/cuda/transport/nccl_option.h"
#include "csrc/devices/devices_for.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

struct Fault {
  const char* name;
  std::function<void()> begin;
  const char* said;  ///< part of the reason
};

const Fault kFaults[] = {
    {"ARankCannotJoin", [] { OF_FAKE_NCCL(fake_nccl_refuse_rank)(1, nccl::kRemoteError); },
     "rank 1: rank 1 failed in "},
    {"AMessageArrivesChanged", [] { OF_FAKE_NCCL(fake_nccl_change_messages_of)(2); },
     "of messages that try NCCL, that of rank 2 arrived changed"},
    {"AMessageFails", [] { OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kRemoteError, 0); },
     "remote error"},
};

class NcclTrial : public WithFakeNccl, public testing::WithParamInterface<Fault> {
 protected:
  void SetUp() override {
    WithFakeNccl::SetUp();
    ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "0.5", 1);  // the others wait half as long
    ::unsetenv("HVD_SPARSE_NCCL");
    GetParam().begin();
  }
};

TEST_P(NcclTrial, ThatFailsIsReportedAndAllGoByWayOfTheirCpus) {
  OnRanks(3, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    const std::string begin = "by way of the CPUs, since NCCL is not used: rank ";
    EXPECT_EQ(made.how.substr(0, begin.size()), begin);
    EXPECT_NE(made.how.find(GetParam().said), std::string::npos) << made.how;
    EXPECT_EQ(made.warning,
              "blocks of GPUs go " + made.how + " (with HVD_SPARSE_NCCL=0 no rank tries it)");
  });
}

TEST_P(NcclTrial, ThatFailsLeavesTheStepsTheirBits) {
  const auto tried = RunRanks<float>(3, SpecOf(kGpu, "top_k", "gtopk", {}));
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  const auto untried = RunRanks<float>(3, SpecOf(kGpu, "top_k", "gtopk", {}));
  for (const StepBits& seen : tried) EXPECT_EQ(seen.Over("NCCL"), 0);
  ExpectSameBits(tried, untried);
}

TEST_P(NcclTrial, ThatFailsIsAnErrorOnAllRanksIfOneInsists) {
  ::setenv("HVD_SPARSE_NCCL", "1", 1);
  OnRanks(3, [](Communicator& comm) {
    const Error error = Thrown([&] { ConnectDevices(&comm, kGpu); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_TRUE(Says(error, "HVD_SPARSE_NCCL=1 asks for NCCL, which cannot be used: rank "))
        << error.what();
    EXPECT_TRUE(Says(error, GetParam().said)) << error.what();
  });
}

INSTANTIATE_TEST_SUITE_P(Where, NcclTrial, testing::ValuesIn(kFaults),
                         [](const auto& run) { return std::string(run.param.name); });

class NcclTrialAlone : public WithFakeNccl {};

/// The rank that failed waits for those that still try, and must not give up first.
TEST_F(NcclTrialAlone, ThatFailsEarlyOnARankEndsBeforeThatRankGivesUp) {
  OF_FAKE_NCCL(fake_nccl_refuse_rank)(1, nccl::kRemoteError);
  TcpRanks(3, WaitLimits{60, 2}).Run([](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    EXPECT_NE(made.how.find("rank 1 failed in "), std::string::npos) << made.how;
  });
}

TEST_F(NcclTrialAlone, EndsTheExchangeWhereARankIsLostInIt) {
  TcpRanks ranks(3);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      const Error error = Thrown([&] { ConnectDevices(&ranks[rank], kGpu); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLeft) << error.what();
      EXPECT_TRUE(Says(error, "rank 2")) << error.what();
    });
  }
  const GpuTransportOptions table{&cuda::NcclOption(), &cuda::MpiOption()};
  std::vector<Statement> own;
  for (const auto* option : table) own.push_back(StatementOf(*option, "it has none", 0));
  EXPECT_NE(AgreeOnGpuTransport(&ranks[2], table, own).option, nullptr);
  ranks.Leave(2);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclTrialAlone, IsNotMadeWhereTheCpuWaitsForEachKernel) {
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  OnRanks(2, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    EXPECT_NE(made.how.find("CUDA_LAUNCH_BLOCKING=1"), std::string::npos) << made.how;
  });
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
}

}  // namespace
}  // namespace hvd_sparse

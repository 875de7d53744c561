/// A build with CUDA and without NCCL: NCCL still precedes MPI, so that a user who asks for it is
/// told that it was left out.
///
/// This is a separate program, for which devices_for.cc is compiled as in such a build.

#include "csrc/devices/devices_for.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/device_loopback.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

class WithoutNccl : public CudaTest {
 protected:
  void TearDown() override {
    ::unsetenv("HVD_SPARSE_NCCL");
    ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI");
  }
};

TEST_F(WithoutNccl, WhoLooksForItIsToldHowToBuildIt) {
  EXPECT_FALSE(BuiltWithNccl());
  LookForNcclAt({"/lib/libnccl.so.2"});
  const Error error = Thrown([] { FindNccl(); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Says(error, "build it with HVD_SPARSE_WITH_CUDA=1, and without")) << error.what();
}

TEST_F(WithoutNccl, WhoInsistsOnItIsRefusedOnAllRanks) {
  ::setenv("HVD_SPARSE_NCCL", "1", 1);
  OnRanks(3, [](Communicator& comm) {
    const Error error = Thrown([&] { ConnectDevices(&comm, kGpu); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_TRUE(Says(error,
                     "HVD_SPARSE_NCCL=1 asks for NCCL, which cannot be used: rank 0: this build of "
                     "hvd_sparse has no NCCL"))
        << error.what();
  });
}

TEST_F(WithoutNccl, WhoWouldHaveItIfPossibleIsToldWhyNot) {
  ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  OnRanks(3, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    const std::string begin =
        "blocks of GPUs go by way of the CPUs, since NCCL is not used: rank 0: this build of "
        "hvd_sparse has no NCCL";
    EXPECT_EQ(made.warning.substr(0, begin.size()), begin);
  });
}

TEST_F(WithoutNccl, MpiIsUsedInItsStead) {
  ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  OnRanks<DeviceLoopback>(2, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_NE(made.collectives, nullptr);
    const std::string begin = "blocks of GPUs go over CUDA-aware MPI, since NCCL is not used";
    EXPECT_EQ(made.warning.substr(0, begin.size()), begin);
  });
}

TEST_F(WithoutNccl, AProcessThatIsNoRankIsToldTheSame) {
  ::setenv("HVD_SPARSE_NCCL", "1", 1);
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  const std::vector<GpuTransportFacts> facts = AskGpuTransports("", kGpu);
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_EQ(facts[0].name, "NCCL");
  EXPECT_EQ(facts[0].variable, "HVD_SPARSE_NCCL");
  EXPECT_EQ(facts[0].problem, Thrown([] { FindNccl(); }).what());
  EXPECT_EQ(facts[0].refusal,
            "HVD_SPARSE_NCCL=1 asks for NCCL, which cannot be used: " + facts[0].problem);
  EXPECT_EQ(facts[1].name, "CUDA-aware MPI");
  EXPECT_EQ(facts[1].problem, "");
}

TEST_F(WithoutNccl, WhoDoesNotAskForItIsToldNothing) {
  EXPECT_TRUE(CanConnectDevices());
  OnRanks(3, [](Communicator& comm) {
    const DeviceConnection made = ConnectDevices(&comm, kGpu);
    EXPECT_EQ(made.collectives, nullptr);
    EXPECT_EQ(made.warning, "");
  });
}

}  // namespace
}  // namespace hvd_sparse

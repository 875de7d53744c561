/// Ranks decide from their descriptions whether they can use NCCL together.

#include "csrc/cuda/transport/nccl_option.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/types.h"
#include "csrc/collectives/device_agreement.h"
#include "csrc/devices/devices_for.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/nccl/with_fake_nccl.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::nccl {
namespace {

constexpr int kVersion = VersionCode(2, 27, 3);

/// Returns descriptions of ranks that can use NCCL, each on a device of its own.
std::vector<Description> Able(int size) {
  std::vector<Description> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back({kVersion, false, Concat("GPU 0 of host", rank, ", UUID ", rank)});
  }
  return ranks;
}

TEST(NcclOption, RanksOfOneVersionAndWithDevicesOfTheirOwnCan) {
  for (const int size : {1, 2, 5}) EXPECT_EQ(WhyNot(Able(size)), "");
}

TEST(NcclOption, VersionsMustBeTheSame) {
  auto ranks = Able(3);
  ranks[1].version = VersionCode(2, 26, 2);
  EXPECT_EQ(WhyNot(ranks), "rank 1 has NCCL 2.26.2 and rank 0 2.27.3: give all ranks the same");
}

TEST(NcclOption, RanksOfOneDeviceAreRefusedByNcclsThatCannot) {
  auto ranks = Able(3);
  ranks[2].device = ranks[1].device;
  for (Description& one : ranks) one.may_share = true;
  EXPECT_EQ(WhyNot(ranks),
            "ranks 1 and 2 share a device (GPU 0 of host1, UUID 1), for which NCCL 2.30.0 is "
            "needed, with NCCL_MULTI_RANK_GPU_ENABLE=1; there is 2.27.3");
}

TEST(NcclOption, RanksOfOneDeviceAreToldTheVariableThatAllowsIt) {
  auto ranks = Able(2);
  ranks[1].device = ranks[0].device;
  for (Description& one : ranks) one.version = kSharingVersion;
  ranks[0].may_share = true;
  EXPECT_NE(WhyNot(ranks).find("set NCCL_MULTI_RANK_GPU_ENABLE=1"), std::string::npos);
  ranks[1].may_share = true;
  EXPECT_EQ(WhyNot(ranks), "");
}

TEST(NcclOption, ADeviceIsTheSameWhateverItsNumber) {
  auto ranks = Able(2);
  ranks[0].device = "GPU 3 of host, UUID 7";
  ranks[1].device = "GPU 0 of host, UUID 7";
  EXPECT_NE(WhyNot(ranks), "");
  ranks[1].device = "GPU 3 of host, UUID 8";
  EXPECT_EQ(WhyNot(ranks), "");
}

// ---- With the library that stands in for NCCL ---------------------------------------------------

class NcclOptionHere : public WithFakeNccl {};

TEST_F(NcclOptionHere, AProcessDescribesWhatItHas) {
  ::unsetenv(kSharing);
  const Description own = Describe(0);
  EXPECT_EQ(own.version, 23203);
  EXPECT_FALSE(own.may_share);
  EXPECT_NE(own.device.find("UUID 1f1f1f"), std::string::npos) << own.device;
  ::setenv(kSharing, "1", 1);
  EXPECT_TRUE(Describe(0).may_share);
  EXPECT_EQ(Thrown([] { Describe(1); }).kind(), ErrorKind::kUnavailable);  // there is one device
}

TEST_F(NcclOptionHere, ADescriptionTravelsAsText) {
  const Description own = Describe(0), read = Description::Of(own.Text());
  EXPECT_EQ(read.version, own.version);
  EXPECT_EQ(read.may_share, own.may_share);
  EXPECT_EQ(read.device, own.device);
}

TEST_F(NcclOptionHere, RanksThatAgreeGetOneIdAndTheNextOnesAnother) {
  std::vector<UniqueId> ids(6);
  for (const int run : {0, 1}) {
    OnRanks(3, [&](Communicator& comm) {
      const GpuTransportOption& option = cuda::NcclOption();
      const DeviceAgreement agreed =
          AgreeOnGpuTransport(&comm, {&option}, {StatementOf(option, "", 0)});
      EXPECT_EQ(agreed.option, &option);
      EXPECT_EQ(agreed.unmet, "");
      ids[static_cast<std::size_t>(3 * run + comm.Rank())] = IdIn(agreed.invitation);
    });
  }
  const auto same = [&](int one, int other) {
    return std::memcmp(&ids[one], &ids[other], sizeof(UniqueId)) == 0;
  };
  for (const int run : {0, 1})
    EXPECT_TRUE(same(3 * run, 3 * run + 1) && same(3 * run, 3 * run + 2));
  EXPECT_FALSE(same(0, 3));
}

TEST_F(NcclOptionHere, AProcessThatIsNoRankIsToldWhatItCanUseAndWhatNot) {
  const auto asked = [](const char* nccl, const char* mpi) {
    ::setenv("HVD_SPARSE_NCCL", nccl, 1);
    ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", mpi, 1);
    return AskGpuTransports("its memory is full", {DeviceType::kCuda, 0});
  };
  std::vector<GpuTransportFacts> facts = asked("0", "0");
  ASSERT_EQ(facts.size(), 2u);  // in order of preference
  EXPECT_EQ(facts[0].name, "NCCL");
  EXPECT_EQ(facts[0].variable, "HVD_SPARSE_NCCL");
  EXPECT_EQ(facts[0].problem, "HVD_SPARSE_NCCL is 0");
  EXPECT_EQ(facts[1].name, "CUDA-aware MPI");
  EXPECT_EQ(facts[1].variable, "HVD_SPARSE_CUDA_AWARE_MPI");
  for (const GpuTransportFacts& one : facts) EXPECT_EQ(one.refusal, "");

  facts = asked("auto", "auto");
  EXPECT_EQ(facts[0].problem, "");
  EXPECT_EQ(facts[1].problem, "its memory is full");
  for (const GpuTransportFacts& one : facts) EXPECT_EQ(one.refusal, "");

  facts = asked("1", "1");
  EXPECT_EQ(facts[0].refusal, "");
  EXPECT_EQ(facts[1].refusal,
            "HVD_SPARSE_CUDA_AWARE_MPI=1 asks for CUDA-aware MPI, which cannot be used: its memory "
            "is full");

  facts = asked("yes", "0");
  EXPECT_EQ(facts[0].refusal, "HVD_SPARSE_NCCL must be 0, auto, 1 or unset, got 'yes'");
  EXPECT_EQ(facts[0].problem, facts[0].refusal);
}

}  // namespace
}  // namespace hvd_sparse::nccl

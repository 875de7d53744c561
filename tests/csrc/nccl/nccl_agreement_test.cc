/// Whether ranks use NCCL: all or none, for the same reason everywhere.

#include "csrc/cuda/nccl_agreement.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::nccl {
namespace {

constexpr int kVersion = VersionCode(2, 27, 3);

/// Ranks that can use NCCL, each on a device of its own.
std::vector<Means> Able(int size) {
  std::vector<Means> ranks(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    Means& means = ranks[static_cast<std::size_t>(rank)];
    means.wish = Wish::kIfPossible;
    means.version = kVersion;
    means.device = Concat("GPU 0 of host", rank, ", UUID ", rank);
  }
  return ranks;
}

/// What all ranks of a communicator are told; the same, or the test fails.
struct Told {
  std::string problem, thrown;
  ErrorKind kind = ErrorKind::kInvalidArgument;
  UniqueId id = {};
};

Told TellAll(const std::vector<Means>& ranks) {
  ::setenv("HVD_SPARSE_NCCL_LIBRARY", FAKE_NCCL_FOLDER "/libfake_nccl.so", 1);
  std::vector<Told> told(ranks.size());
  OnRanks(static_cast<int>(ranks.size()), [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.Rank());
    try {
      const Agreement agreement = Agree(&comm, ranks[rank]);
      told[rank].problem = agreement.problem;
      told[rank].id = agreement.id;
    } catch (const Error& error) {
      told[rank].thrown = error.what();
      told[rank].kind = error.kind();
    }
  });
  for (const Told& one : told) {
    EXPECT_EQ(one.problem, told[0].problem);
    EXPECT_EQ(one.thrown, told[0].thrown);
    EXPECT_EQ(one.kind, told[0].kind);
    EXPECT_EQ(std::memcmp(&one.id, &told[0].id, sizeof(UniqueId)), 0);
  }
  return told[0];
}

TEST(NcclAgreement, RanksThatCanAllGetOneIdAndTheNextOnesAnother) {
  for (const int size : {2, 3, 5}) {
    const Told first = TellAll(Able(size)), second = TellAll(Able(size));
    EXPECT_EQ(first.problem + first.thrown, "");
    EXPECT_NE(std::memcmp(&first.id, &second.id, sizeof(UniqueId)), 0);
  }
}

TEST(NcclAgreement, OneRankThatCannotKeepsAllFromIt) {
  auto ranks = Able(4);
  ranks[2].problem = "NCCL cannot be loaded";
  EXPECT_EQ(TellAll(ranks).problem, "rank 2: NCCL cannot be loaded");
}

TEST(NcclAgreement, AReasonOfAnyLengthTravels) {
  auto ranks = Able(2);
  ranks[1].problem = std::string(100'000, 'x');
  const std::string problem = TellAll(ranks).problem;
  EXPECT_EQ(problem.find("rank 1: xxx"), 0u);
  EXPECT_GT(problem.size(), 1000u);
}

TEST(NcclAgreement, VersionsMustBeTheSame) {
  auto ranks = Able(3);
  ranks[1].version = VersionCode(2, 26, 2);
  EXPECT_EQ(TellAll(ranks).problem,
            "rank 1 has NCCL 2.26.2 and rank 0 2.27.3: give all ranks the same");
}

TEST(NcclAgreement, RanksOfOneDeviceAreRefusedByNcclsThatCannot) {
  auto ranks = Able(3);
  ranks[2].device = ranks[1].device;
  for (Means& one : ranks) one.may_share = true;
  EXPECT_EQ(WhyNot(ranks),
            "ranks 1 and 2 share a device (GPU 0 of host1, UUID 1), for which NCCL 2.30.0 is "
            "needed, with NCCL_MULTI_RANK_GPU_ENABLE=1; there is 2.27.3");
}

TEST(NcclAgreement, RanksOfOneDeviceAreToldTheVariableThatAllowsIt) {
  auto ranks = Able(2);
  ranks[1].device = ranks[0].device;
  for (Means& one : ranks) one.version = kSharingVersion;
  ranks[0].may_share = true;
  EXPECT_NE(WhyNot(ranks).find("set NCCL_MULTI_RANK_GPU_ENABLE=1"), std::string::npos);
  ranks[1].may_share = true;
  EXPECT_EQ(WhyNot(ranks), "");
}

TEST(NcclAgreement, ADeviceIsTheSameWhateverItsNumber) {
  auto ranks = Able(2);
  ranks[0].device = "GPU 3 of host, UUID 7";
  ranks[1].device = "GPU 0 of host, UUID 7";
  EXPECT_NE(WhyNot(ranks), "");
  ranks[1].device = "GPU 3 of host, UUID 8";
  EXPECT_EQ(WhyNot(ranks), "");
}

TEST(NcclAgreement, ARankThatInsistsEndsAllWithTheReason) {
  auto ranks = Able(3);
  ranks[0].wish = Wish::kAlways;
  EXPECT_EQ(TellAll(ranks).thrown, "");
  ranks[2].problem = "no device";
  const Told told = TellAll(ranks);
  EXPECT_EQ(told.kind, ErrorKind::kUnavailable);
  EXPECT_EQ(told.thrown,
            "HVD_SPARSE_NCCL=1 asks for NCCL, which cannot be used: rank 2: no device");
}

TEST(NcclAgreement, OfThisProcessFollowsTheEnvironment) {
  ::setenv("HVD_SPARSE_NCCL_LIBRARY", FAKE_NCCL_FOLDER "/libfake_nccl.so", 1);
  ::unsetenv("HVD_SPARSE_NCCL");
  ::unsetenv(kSharing);
  EXPECT_EQ(MeansOf(0).wish, Wish::kNever);
  EXPECT_EQ(MeansOf(0).problem, "HVD_SPARSE_NCCL is neither auto nor 1");
  ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  const Means able = MeansOf(0);
  EXPECT_EQ(able.problem, "");
  EXPECT_EQ(able.version, 23203);
  EXPECT_FALSE(able.may_share);
  EXPECT_NE(able.device.find("UUID 1f1f1f"), std::string::npos) << able.device;
  EXPECT_NE(MeansOf(1).problem, "");  // there is one device

  ::setenv(kSharing, "1", 1);
  EXPECT_TRUE(MeansOf(0).may_share);
  ::setenv("HVD_SPARSE_NCCL", "1", 1);
  EXPECT_EQ(MeansOf(0).wish, Wish::kAlways);
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  EXPECT_EQ(MeansOf(0).wish, Wish::kNever);
  ::setenv("HVD_SPARSE_NCCL", "yes", 1);
  const Means mistaken = MeansOf(0);
  ::unsetenv("HVD_SPARSE_NCCL");
  ::unsetenv(kSharing);

  auto ranks = Able(2);
  ranks[1] = mistaken;
  const Told told = TellAll(ranks);
  EXPECT_EQ(told.kind, ErrorKind::kInvalidArgument);
  EXPECT_EQ(told.thrown, "rank 1: HVD_SPARSE_NCCL must be 0, auto, 1 or unset, got 'yes'");
}

TEST(NcclAgreement, AnotherVersionOfThisPackageIsFoundOut) {
  std::vector<Error> errors(2, Error(ErrorKind::kInvalidArgument, ""));
  OnRanks(2, [&](Communicator& comm) {
    if (comm.Rank() == 0) {
      errors[0] = Thrown([&] { Agree(&comm, Able(2)[0]); });
      comm.Fail(errors[0].kind(), errors[0].what());
      return;
    }
    const char byte = 1;
    const std::vector<Outgoing> out{{0, &byte, 1}};
    comm.Transfer(out, {}, "something else");
  });
  EXPECT_EQ(errors[0].kind(), ErrorKind::kDisagreement);
  EXPECT_TRUE(Says(errors[0], "rank 1 sent 1 bytes for the agreement on NCCL"));
}

}  // namespace
}  // namespace hvd_sparse::nccl

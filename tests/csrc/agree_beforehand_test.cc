/// What ranks compare by their CPUs before their devices wait for each other.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr int kSize = 5;

/// A rank's header and counts, and the limit of these.
struct Announced {
  BlockHeader header = {};
  std::vector<std::int64_t> counts = {0, 7};
  std::int64_t room = 100;
};

/// Has ranks agree whose announcements are altered by rank; returns what each of them throws.
std::vector<Error> Agree(const std::function<void(int rank, Announced*)>& alter) {
  std::vector<Error> errors(kSize, {ErrorKind::kInvalidArgument, ""});
  OnRanks(kSize, [&](Communicator& comm) {
    Announced own;
    own.header.route = Route::kRounds;
    own.counts[0] = 10 * comm.Rank();
    alter(comm.Rank(), &own);
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, 10, 10, "bucket 'b'"};
    errors[static_cast<std::size_t>(comm.Rank())] = Thrown([&] {
      const std::vector<std::int64_t> all =
          ctx.AgreeBeforehand(&own.header, own.counts, own.room, "headers");
      EXPECT_EQ(all, (std::vector<std::int64_t>{0, 7, 10, 7, 20, 7, 30, 7, 40, 7}));
      EXPECT_EQ(own.header.verdict, Verdict::BadGradient(3));
    });
  });
  return errors;
}

void ExpectAll(const std::vector<Error>& errors, ErrorKind kind, const std::string& said) {
  for (const Error& error : errors) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(Says(error, said.c_str())) << error.what();
  }
}

TEST(AgreeBeforehand, ARankLearnsTheCountsOfAllAndTheWorstVerdict) {
  const auto errors = Agree([](int rank, Announced* own) {
    if (rank == 3) own->header.verdict = Verdict::BadGradient(3);
  });
  for (const Error& error : errors) EXPECT_TRUE(Says(error, "nothing was thrown")) << error.what();
}

TEST(AgreeBeforehand, AnotherRouteIsToldToAll) {
  const auto errors = Agree([](int rank, Announced* own) {
    if (rank == 2) own->header.route = Route::kCalls;
  });
  ExpectAll(errors, ErrorKind::kDisagreement, "bucket 'b' takes the route '");
}

TEST(AgreeBeforehand, AnotherKIsToldToAll) {
  const auto errors = Agree([](int rank, Announced* own) {
    if (rank == 4) own->header.asked = 9;
  });
  ExpectAll(errors, ErrorKind::kDisagreement, "asked for");
}

TEST(AgreeBeforehand, MoreEntriesThanThereIsRoomForAreToldToAll) {
  for (const std::int64_t count : {std::int64_t{101}, std::int64_t{-1}}) {
    const auto errors = Agree([count](int rank, Announced* own) {
      if (rank == 1) own->counts[1] = count;
    });
    ExpectAll(errors, ErrorKind::kExchangeFailed, Concat("rank 1 announces ", count, " entries"));
  }
}

}  // namespace
}  // namespace hvd_sparse

/// The loopback communicator keeps the contract of Communicator for any number of thread ranks.

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"

namespace hvd_sparse {
namespace {

/// Runs `body` on every rank of a new world, each in its own thread.
void OnEveryRank(int size, double timeout_seconds, const std::function<void(Communicator&)>& body) {
  auto world = std::make_shared<LoopbackWorld>(size, timeout_seconds);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      LoopbackCommunicator comm(world, rank);
      body(comm);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// The error that `body` throws.
Error Thrown(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInvalidArgument, "nothing was thrown");
}

class LoopbackSizes : public testing::TestWithParam<int> {};

TEST_P(LoopbackSizes, EveryRankHearsFromEveryRankIncludingItself) {
  OnEveryRank(GetParam(), 60, [](Communicator& comm) {
    const int size = comm.Size();
    for (int round = 0; round < 3; ++round) {
      std::vector<int> sent(size), received(size, -1);
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int peer = 0; peer < size; ++peer) {
        sent[peer] = 1000000 * round + 1000 * comm.Rank() + peer;
        out.push_back({peer, &sent[peer], sizeof(int)});
        in.push_back({peer, &received[peer], sizeof(int)});
      }
      comm.Transfer(out, in, "all to all");
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_EQ(in[peer].bytes, static_cast<std::int64_t>(sizeof(int)));
        EXPECT_EQ(received[peer], 1000000 * round + 1000 * peer + comm.Rank());
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(UpTo100Ranks, LoopbackSizes, testing::Values(1, 2, 3, 4, 17, 64, 100));

TEST(Loopback, MessagesOfAPairArriveInOrder) {
  constexpr int kMessages = 1000;
  OnEveryRank(2, 60, [](Communicator& comm) {
    for (int i = 0; i < kMessages; ++i) {
      int number = i;
      Outgoing out{1, &number, sizeof(number)};
      Incoming in{0, &number, sizeof(number)};
      if (comm.Rank() == 0) comm.Transfer({&out, 1}, {}, "send");
      if (comm.Rank() == 1) comm.Transfer({}, {&in, 1}, "receive");
      EXPECT_EQ(number, i);
    }
  });
}

TEST(Loopback, AMessageMayBeEmptyOrShorterThanItsRoom) {
  OnEveryRank(2, 60, [](Communicator& comm) {
    const int peer = 1 - comm.Rank();
    char text[8] = "abc";
    char room[8] = {};
    const Outgoing out[] = {{peer, nullptr, 0}, {peer, text, 3}};
    Incoming in[] = {{peer, nullptr, 0}, {peer, room, 8}};
    comm.Transfer({out, 2}, {in, 2}, "short");
    EXPECT_EQ(in[0].bytes, 0);
    EXPECT_EQ(in[1].bytes, 3);
    EXPECT_STREQ(room, "abc");
  });
}

TEST(Loopback, ALongMessageThrowsExchangeFailed) {
  OnEveryRank(1, 60, [](Communicator& comm) {
    char text[8] = {};
    const Outgoing out{0, text, 8};
    Incoming in{0, text, 7};
    const Error error = Thrown([&] { comm.Transfer({&out, 1}, {&in, 1}, "bucket 3"); });
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_STREQ(error.what(),
                 "rank 0 sent 8 bytes to rank 0, which expected at most 7, in bucket 3");
  });
}

TEST(Loopback, FailWakesEveryRankWithTheFirstReason) {
  OnEveryRank(17, 60, [](Communicator& comm) {
    char byte = 0;
    Incoming in{(comm.Rank() + 1) % comm.Size(), &byte, 1};
    if (comm.Rank() == 5) {
      comm.Fail("rank 5 is out of memory");
      comm.Fail("a later reason");
    }
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "bucket 0"); });
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_STREQ(error.what(), "rank 5 is out of memory");
    EXPECT_EQ(Thrown([&] { comm.Check(); }).kind(), ErrorKind::kExchangeFailed);
  });
}

TEST(Loopback, CheckThrowsNothingBeforeAFailure) {
  OnEveryRank(2, 60, [](Communicator& comm) { EXPECT_NO_THROW(comm.Check()); });
}

TEST(Loopback, TheDeadlineNamesThePeerAndThePurpose) {
  OnEveryRank(2, 0.05, [](Communicator& comm) {
    if (comm.Rank() == 1) return;
    char byte = 0;
    Incoming in{1, &byte, 1};
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "bucket 3 (fc), round 1"); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_STREQ(error.what(), "rank 0 has waited 0.05 s for rank 1 in bucket 3 (fc), round 1");
  });
}

TEST(Loopback, RanksOutsideTheWorldAreRefused) {
  auto world = std::make_shared<LoopbackWorld>(2);
  EXPECT_EQ(Thrown([&] { LoopbackCommunicator comm(world, 2); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(Thrown([] { LoopbackWorld empty(0); }).kind(), ErrorKind::kInvalidArgument);
  LoopbackCommunicator comm(world, 0);
  const Outgoing out{2, nullptr, 0};
  const Error error = Thrown([&] { comm.Transfer({&out, 1}, {}, "bucket 0"); });
  EXPECT_STREQ(error.what(), "no rank 2 in a world of 2: bucket 0");
}

}  // namespace
}  // namespace hvd_sparse

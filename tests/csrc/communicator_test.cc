/// Every communicator that can connect threads keeps the contract of Communicator.

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "tests/csrc/lifeline_testing.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using Body = std::function<void(Communicator&)>;

void OverLoopback(int size, double timeout_seconds, const Body& body) {
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

void OverTcp(int size, double timeout_seconds, const Body& body) {
  WaitLimits limits;
  limits.fail_seconds = timeout_seconds;
  TcpRanks(size, limits).Run(body);
}

struct Transport {
  const char* name;
  void (*run)(int size, double timeout_seconds, const Body& body);
  const char* deadline;  // the error of rank 0 after a wait of 0.05 s for rank 1
};

std::ostream& operator<<(std::ostream& out, const Transport& transport) {
  return out << transport.name;
}

const Transport kLoopback{"Loopback", OverLoopback, "rank 0 has waited 0.05 s for rank 1 in "};
const Transport kTcp{
    "Tcp", OverTcp,
    "rank 0 gave up waiting for rank 1 after 0.05 s (HVD_SPARSE_TIMEOUT_SECONDS) in "};

class CommunicatorSizes : public testing::TestWithParam<std::tuple<Transport, int>> {};

TEST_P(CommunicatorSizes, EveryRankHearsFromEveryRankIncludingItself) {
  const auto& [transport, ranks] = GetParam();
  transport.run(ranks, 60, [](Communicator& comm) {
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
INSTANTIATE_TEST_SUITE_P(UpTo100Ranks, CommunicatorSizes,
                         testing::Combine(testing::Values(kLoopback),
                                          testing::Values(1, 2, 3, 4, 17, 64, 100)));
// 17 ranks in one process hold 272 connection ends; many systems allow 1024 descriptors.
INSTANTIATE_TEST_SUITE_P(UpTo17Ranks, CommunicatorSizes,
                         testing::Combine(testing::Values(kTcp), testing::Values(1, 2, 3, 4, 17)));

class Communicators : public testing::TestWithParam<Transport> {};

TEST_P(Communicators, MessagesOfAPairArriveInOrder) {
  constexpr int kMessages = 1000;
  GetParam().run(2, 60, [](Communicator& comm) {
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

TEST_P(Communicators, AMessageMayBeEmptyOrShorterThanItsRoom) {
  GetParam().run(2, 60, [](Communicator& comm) {
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

TEST_P(Communicators, ALongMessageMeansThatTheRanksDisagree) {
  GetParam().run(1, 60, [](Communicator& comm) {
    char text[8] = {};
    const Outgoing out{0, text, 8};
    Incoming in{0, text, 7};
    const Error error = Thrown([&] { comm.Transfer({&out, 1}, {&in, 1}, "bucket 3"); });
    EXPECT_EQ(error.kind(), ErrorKind::kDisagreement);
    EXPECT_STREQ(error.what(),
                 "the ranks disagree: rank 0 sent 8 bytes to rank 0, which expected at most 7, in "
                 "bucket 3");
  });
}

TEST_P(Communicators, FailWakesEveryRankWithTheFirstReason) {
  GetParam().run(17, 60, [](Communicator& comm) {
    char byte = 0;
    Incoming in{(comm.Rank() + 1) % comm.Size(), &byte, 1};
    if (comm.Rank() == 5) {
      comm.Fail(ErrorKind::kExchangeFailed, "rank 5 is out of memory");
      comm.Fail(ErrorKind::kExchangeFailed, "a later reason");
    }
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "bucket 0"); });
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_TRUE(Says(error, "rank 5 is out of memory")) << error.what();
    EXPECT_EQ(Thrown([&] { comm.Check(); }).kind(), ErrorKind::kExchangeFailed);
  });
}

TEST_P(Communicators, AStepThatAFailedRankIsThroughWithIsFinished) {
  Meeting failed(4);
  GetParam().run(4, 60, [&](Communicator& comm) {
    const auto await_failure = [&] {
      const bool ended = Eventually([&] {
        try {
          comm.Check();
          return false;
        } catch (const Error& error) {
          EXPECT_TRUE(Says(error, "no more data")) << error.what();
          return true;
        }
      });
      EXPECT_TRUE(ended);
    };
    const bool is_late = comm.Rank() == 1 || comm.Rank() == 2;
    if (!is_late) comm.Committed(1);
    if (comm.Rank() == 0) comm.Fail(ErrorKind::kExchangeFailed, "no more data");
    if (!is_late) await_failure();
    failed.Attend();
    if (!is_late) return;

    const int peer = 3 - comm.Rank();
    const auto mine = static_cast<char>(comm.Rank());
    char theirs = 0;
    const Outgoing out{peer, &mine, 1};
    Incoming in{peer, &theirs, 1};
    EXPECT_NO_THROW(comm.Transfer({&out, 1}, {&in, 1}, "bucket 0"));
    EXPECT_EQ(theirs, peer);
    EXPECT_NO_THROW(comm.Check());
    EXPECT_NO_THROW(comm.CheckAtEnd());
    comm.Committed(1);
    await_failure();
    EXPECT_EQ(Thrown([&] { comm.Transfer({}, {&in, 1}, "bucket 0"); }).kind(),
              ErrorKind::kExchangeFailed);
  });
}

TEST_P(Communicators, CheckThrowsNothingBeforeAFailure) {
  GetParam().run(2, 60, [](Communicator& comm) { EXPECT_NO_THROW(comm.Check()); });
}

TEST_P(Communicators, TheDeadlineNamesThePeerAndThePurpose) {
  GetParam().run(2, 0.05, [](Communicator& comm) {
    if (comm.Rank() == 1) return;
    char byte = 0;
    Incoming in{1, &byte, 1};
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "bucket 3 (fc), round 1"); });
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_EQ(error.what(), std::string(GetParam().deadline) + "bucket 3 (fc), round 1");
  });
}

TEST_P(Communicators, RanksOutsideTheWorldAreRefused) {
  GetParam().run(2, 60, [](Communicator& comm) {
    const Outgoing out{2, nullptr, 0};
    const Error error = Thrown([&] { comm.Transfer({&out, 1}, {}, "bucket 0"); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "no rank 2 in a world of 2: bucket 0");
  });
}

INSTANTIATE_TEST_SUITE_P(OfThreads, Communicators, testing::Values(kLoopback, kTcp),
                         testing::PrintToStringParamName());

TEST(Loopback, NonsenseIsRefused) {
  auto world = std::make_shared<LoopbackWorld>(2);
  EXPECT_EQ(Thrown([&] { LoopbackCommunicator comm(world, 2); }).kind(),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(Thrown([] { LoopbackWorld empty(0); }).kind(), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace hvd_sparse

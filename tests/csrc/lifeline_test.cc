/// Every rank learns that another left or failed; and how connections are made. Ranks are threads.

#include "csrc/comm/lifeline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/comm/handshake.h"
#include "csrc/comm/lifeline_wire.h"
#include "csrc/comm/listen_address.h"
#include "tests/csrc/failing_allocations.h"
#include "tests/csrc/lifeline_testing.h"
#include "tests/csrc/rank_process.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using Lifelines = std::vector<std::unique_ptr<Lifeline>>;

Lifelines ConnectedLifelines(int size) {
  Lifelines lifelines;
  for (int rank = 0; rank < size; ++rank) {
    lifelines.push_back(std::make_unique<Lifeline>(rank, size, kName));
  }
  const std::string address = lifelines[0]->Listen();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { lifelines[rank]->Connect(rank == 0 ? "" : address, 20); });
  }
  for (auto& thread : threads) thread.join();
  return lifelines;
}

class LifelineSizes : public testing::TestWithParam<int> {};

TEST_P(LifelineSizes, NothingIsReportedWhileAllAreThere) {
  const Lifelines lifelines = ConnectedLifelines(GetParam());
  for (const auto& lifeline : lifelines) EXPECT_FALSE(lifeline->CurrentFailure(0));
}

TEST_P(LifelineSizes, TheReasonOfAFailureReachesEveryRank) {
  const int size = GetParam();
  for (const int rank : {0, size / 2, size - 1}) {
    const Lifelines lifelines = ConnectedLifelines(size);
    lifelines[rank]->Fail(ErrorKind::kExchangeFailed, "out of memory");
    const std::string expected = Concat("rank ", rank, " ended the exchange: out of memory");
    for (const auto& lifeline : lifelines) {
      EXPECT_EQ(Report(*lifeline, kNever), expected);
      EXPECT_EQ(lifeline->CurrentFailure()->kind, ErrorKind::kExchangeFailed);
    }
  }
}

TEST_P(LifelineSizes, EveryRankMeetsTheSameKindOfFailure) {
  const int size = GetParam();
  for (int number = 0; number <= static_cast<int>(kLastErrorKind); ++number) {
    const auto kind = static_cast<ErrorKind>(number);
    const Lifelines lifelines = ConnectedLifelines(size);
    lifelines[size - 1]->Fail(kind, "no more");
    for (const auto& lifeline : lifelines) {
      Report(*lifeline, kNever);
      EXPECT_EQ(lifeline->CurrentFailure()->kind, KindOnPeers(kind));
    }
  }
}

TEST_P(LifelineSizes, ARankThatLeavesIsReportedAfterTheGracePeriod) {
  const int size = GetParam();
  for (const int rank : {0, size - 1}) {
    Lifelines lifelines = ConnectedLifelines(size);
    lifelines[rank].reset();
    const std::string expected =
        Concat("rank ", rank, " of ", size, " left exchange 'optimizer.0'");
    for (const auto& lifeline : lifelines) {
      if (!lifeline) continue;
      EXPECT_EQ(Report(*lifeline, 0), expected);
      EXPECT_EQ(lifeline->CurrentFailure(0)->kind, ErrorKind::kPeerLeft);
      EXPECT_FALSE(lifeline->CurrentFailure(kNever));
      EXPECT_EQ(Report(*lifeline, 0.05), expected);
      EXPECT_FALSE(lifeline->FailureAtEnd());
    }
  }
}

/// Destroys a rank's lifeline on a thread of its own.
std::future<void> Leave(std::unique_ptr<Lifeline>* lifeline) {
  return std::async(std::launch::async,
                    [leaving = std::move(*lifeline)]() mutable { leaving.reset(); });
}

bool HasLeft(const std::future<void>& leaving, double seconds = 20) {
  return leaving.wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
}

TEST_P(LifelineSizes, ARankThatLeftAfterTheStepOfAnotherIsNotMissedAtOnce) {
  const int size = GetParam();
  for (const int rank : {0, size - 1}) {
    Lifelines lifelines = ConnectedLifelines(size);
    lifelines[rank]->Committed(3);
    const auto leaving = Leave(&lifelines[rank]);
    for (const auto& lifeline : lifelines) {
      if (!lifeline) continue;
      lifeline->Committed(2);
      EXPECT_NE(Report(*lifeline, 0), "(none)");  // for ranks with nothing in flight any more
      EXPECT_FALSE(lifeline->CurrentFailure(1e-9));
      lifeline->Committed(3);  // now this rank is in a step that the other has not committed
      EXPECT_TRUE(lifeline->CurrentFailure(1e-9));
    }
  }
}

TEST_P(LifelineSizes, ARankLeavesWhenAllAreThroughWithItsLastStepOrLeaveToo) {
  const int size = GetParam();
  if (size < 2) return;  // there is nobody to wait for
  for (const int rank : {0, size - 1}) {
    for (const bool others_leave : {false, true}) {
      Lifelines lifelines = ConnectedLifelines(size);
      const int late = size - 1 - rank;
      for (int other = 0; other < size; ++other) lifelines[other]->Committed(other == late ? 2 : 3);
      std::vector<std::future<void>> leaving;
      leaving.push_back(Leave(&lifelines[rank]));
      for (int other = 0; others_leave && other < size; ++other) {
        if (lifelines[other] && other != late) leaving.push_back(Leave(&lifelines[other]));
      }
      for (const auto& one : leaving) EXPECT_FALSE(HasLeft(one, 0.02));
      if (others_leave) {
        leaving.push_back(Leave(&lifelines[late]));
      } else {
        lifelines[late]->Committed(3);
      }
      for (const auto& one : leaving) EXPECT_TRUE(HasLeft(one));
    }
  }
}

TEST(Lifeline, ARankWaitsForNobodyOnceTheExchangeHasEnded) {
  for (const int rank : {0, 1, 2}) {
    for (const bool before : {true, false}) {
      Lifelines lifelines = ConnectedLifelines(3);
      const int late = (rank + 1) % 3;
      for (int other = 0; other < 3; ++other) lifelines[other]->Committed(other == late ? 2 : 3);
      const auto end = [&] { lifelines[late]->Fail(ErrorKind::kExchangeFailed, "enough"); };
      if (before) {
        end();
        Report(*lifelines[rank], kNever);
      }
      const auto leaving = Leave(&lifelines[rank]);
      if (!before) {
        EXPECT_FALSE(HasLeft(leaving, 0.02));
        end();
      }
      EXPECT_TRUE(HasLeft(leaving));
    }
  }
}

TEST_P(LifelineSizes, AStepThatAFailedRankIsThroughWithIsTakenByAll) {
  const int size = GetParam();
  if (size < 3) return;  // a failed rank, one that committed, and a late one
  for (const int rank : {0, 1, size - 1}) {
    Lifelines lifelines = ConnectedLifelines(size);
    const int late = (rank + 1) % size;
    for (int other = 0; other < size; ++other) lifelines[other]->Committed(other == late ? 2 : 3);
    lifelines[rank]->Fail(ErrorKind::kExchangeFailed, "enough");
    const std::string expected = Concat("rank ", rank, " ended the exchange: enough");
    for (int other = 0; other < size; ++other) {
      if (other == late) continue;
      EXPECT_EQ(Report(*lifelines[other], kNever), expected);
    }
    EXPECT_EQ(Report(*lifelines[late], 0), expected);  // for ranks with nothing in flight any more
    EXPECT_FALSE(lifelines[late]->CurrentFailure());
    EXPECT_FALSE(lifelines[late]->FailureAtEnd());
    const auto leaving = Leave(&lifelines[rank]);
    EXPECT_FALSE(HasLeft(leaving, 0.02));
    lifelines[late]->Committed(3);
    EXPECT_EQ(Report(*lifelines[late], kNever), expected);
    EXPECT_TRUE(HasLeft(leaving));
  }
}

TEST(Lifeline, OthersHearOfAFailureThroughARankZeroThatIsLeaving) {
  Lifelines lifelines = ConnectedLifelines(3);
  lifelines[0]->Committed(1);
  const auto leaving = Leave(&lifelines[0]);
  EXPECT_EQ(Report(*lifelines[1], 0), "rank 0 of 3 left exchange 'optimizer.0'");
  lifelines[1]->Fail(ErrorKind::kExchangeFailed, "no memory");
  EXPECT_EQ(Report(*lifelines[2], kNever), "rank 1 ended the exchange: no memory");
}

TEST(Lifeline, OfSeveralThatLeftTheOneThatIsMissedCounts) {
  Lifelines lifelines = ConnectedLifelines(4);
  lifelines[1]->Committed(1);
  const auto leaving = Leave(&lifelines[1]);
  EXPECT_EQ(Report(*lifelines[3], 0), "rank 1 of 4 left exchange 'optimizer.0'");
  EXPECT_FALSE(lifelines[3]->CurrentFailure(1e-9));
  lifelines[2].reset();
  EXPECT_EQ(Report(*lifelines[3], 1e-9), "rank 2 of 4 left exchange 'optimizer.0'");
  for (const int late : {0, 3}) lifelines[late]->Committed(1);
}

INSTANTIATE_TEST_SUITE_P(UpTo64Ranks, LifelineSizes, testing::Values(1, 2, 3, 4, 17, 64));

TEST(Lifeline, AFailureThatThereWasNoMemoryToTellMayBeToldAgain) {
  for (int allocation = 0;; ++allocation) {
    const Lifelines lifelines = ConnectedLifelines(2);
    FailAllocation(allocation);
    try {
      lifelines[1]->Fail(ErrorKind::kOutOfMemory, "a reason that takes memory");
    } catch (const std::bad_alloc&) {
      lifelines[1]->Fail(ErrorKind::kOutOfMemory, "no memory");
    }
    const bool any = StopFailingAllocations();
    EXPECT_NE(Report(*lifelines[0]).find("rank 1 ended the exchange: "), std::string::npos);
    if (!any || testing::Test::HasFailure()) return;
  }
}

TEST(Lifeline, TheFirstReasonStays) {
  const Lifelines lifelines = ConnectedLifelines(3);
  lifelines[1]->Fail(ErrorKind::kExchangeFailed, "first");
  for (const auto& lifeline : lifelines) Report(*lifeline);
  for (const auto& lifeline : lifelines) lifeline->Fail(ErrorKind::kExchangeFailed, "second");
  for (const auto& lifeline : lifelines) {
    EXPECT_EQ(Report(*lifeline), "rank 1 ended the exchange: first");
  }
}

TEST(Lifeline, AFailureIsReportedEvenIfItsRankLeavesAtOnce) {
  for (const int rank : {0, 1}) {
    Lifelines lifelines = ConnectedLifelines(3);
    lifelines[rank]->Fail(ErrorKind::kExchangeFailed, "first");
    lifelines[rank].reset();
    for (const auto& lifeline : lifelines) {
      if (!lifeline) continue;
      EXPECT_EQ(Report(*lifeline, kNever), Concat("rank ", rank, " ended the exchange: first"));
      ASSERT_TRUE(lifeline->FailureAtEnd());
      EXPECT_EQ(lifeline->FailureAtEnd()->kind, ErrorKind::kExchangeFailed);
    }
  }
}

TEST(Lifeline, AllMayFailAndLeaveAtTheSameTime) {
  for (int round = 0; round < 20; ++round) {
    Lifelines lifelines = ConnectedLifelines(4);
    std::vector<std::thread> threads;
    for (auto& lifeline : lifelines) {
      threads.emplace_back([&lifeline] {
        lifeline->Fail(ErrorKind::kExchangeFailed, "all at once");
        lifeline->Acknowledge();
        EXPECT_TRUE(lifeline->CurrentFailure());
        lifeline.reset();
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

// ------------------------------------------------------------------------------- the rendezvous

TEST(Lifeline, MissingRanksAreNamedOnAllRanksThatCame) {
  Lifeline hub(0, 4, kName), other(1, 4, kName);
  const std::string address = hub.Listen();
  std::string other_error;
  std::thread thread([&] { other_error = Thrown([&] { other.Connect(address, 0.3); }).what(); });
  const Error error = Thrown([&] { hub.Connect("", 0.3); });
  thread.join();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(std::string(error.what()).find("ranks 2, 3 of 4 did not connect to rank 0 ("), 0u)
      << error.what();
  EXPECT_EQ(other_error, error.what());
}

TEST(Lifeline, AnUnreachableHubIsNamedWithItsAddresses) {
  std::string address;
  {
    Lifeline hub(0, 2, kName);
    address = hub.Listen();
  }
  Lifeline lifeline(1, 2, kName);
  const Error error = Thrown([&] { lifeline.Connect(address, 0.2); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(std::string(error.what()), Concat("rank 1 of 2 could not connect to rank 0 (",
                                              ListenAddress::Parse(address).Place(),
                                              ") for exchange 'optimizer.0': Connection refused"));
}

/// Connects as rank 1 of three, with a handshake and a record.
std::optional<LifelineConnection> ComeAsRank1(const ListenAddress& address) {
  CallerHandshake handshake(BeginConnecting("127.0.0.1", address.port), address.key, 1, 0);
  const auto ended = [&] { return handshake.Advance() != HandshakeStatus::kUnderWay; };
  if (!Eventually(ended) || !handshake.problem().empty()) return std::nullopt;
  LifelineConnection connection(handshake.Take());
  connection.Post({RecordKind::kHello, 1, "host h, pid 1"});
  return connection;
}

TEST(Lifeline, ARankThatDiesBeforeAllHaveComeIsNamedOnAllAtOnce) {
  Lifeline hub(0, 4, kName), other(2, 4, kName);
  const std::string address = hub.Listen();
  const auto start = Clock::now();
  auto of_hub = std::async(
      std::launch::async, [&] { return std::string(Thrown([&] { hub.Connect("", 60); }).what()); });
  auto of_other = std::async(std::launch::async, [&] {
    return std::string(Thrown([&] { other.Connect(address, 60); }).what());
  });
  {
    auto rank1 = ComeAsRank1(ListenAddress::Parse(address));
    ASSERT_TRUE(rank1);
    EXPECT_TRUE(rank1->WaitForNext(After(20)));
  }
  EXPECT_EQ(of_hub.get(),
            "rank 1 of 4 (host h, pid 1) has died while the ranks connected for exchange "
            "'optimizer.0'");
  const std::string told = of_other.get();  // depends on when it connected
  EXPECT_TRUE(told.find("rank 1 of 4 (host h, pid 1) has died") == 0 ||
              told.find("rank 2 of 4 could not connect to rank 0 (") == 0)
      << told;
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(Lifeline, ARankZeroThatDiesBeforeAllHaveComeIsNamedAtOnce) {
  RankProcess process([&](const Instructions& instructions) {
    Lifeline hub(0, 4, kName);
    instructions.Answer(hub.Listen());
    hub.Connect("", 60);
    return 0;
  });
  const std::string address = process.Answer();
  const auto start = Clock::now();
  auto of_other = std::async(std::launch::async, [&] {
    Lifeline other(2, 4, kName);
    return Thrown([&] { other.Connect(address, 60); });
  });
  auto rank1 = ComeAsRank1(ListenAddress::Parse(address));
  ASSERT_TRUE(rank1);
  EXPECT_TRUE(rank1->WaitForNext(After(20)));
  process.Kill(SIGKILL);
  const Error error = of_other.get();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(Lifeline, ASecondClaimToARankIsRefusedAndTheFirstStays) {
  Lifeline hub(0, 3, kName), other(2, 3, kName);
  const std::string address = hub.Listen();
  auto connected = std::async(std::launch::async, [&] { hub.Connect("", 20); });
  auto first = ComeAsRank1(ListenAddress::Parse(address));
  ASSERT_TRUE(first);
  EXPECT_FALSE(ComeAsRank1(ListenAddress::Parse(address)));
  other.Connect(address, 20);
  connected.get();
  for (const RecordKind kind : {RecordKind::kWelcome, RecordKind::kStart}) {
    const auto record = first->WaitForNext(After(20));
    ASSERT_TRUE(record);
    EXPECT_EQ(record->kind, kind);
  }
}

TEST(Lifeline, StrangersAreDroppedWithoutDisturbing) {
  Lifeline hub(0, 2, kName), other(1, 2, kName);
  const auto address = ListenAddress::Parse(hub.Listen());
  const auto stranger = [&](const Record& record) {
    LifelineConnection connection(ConnectTo("127.0.0.1", address.port, After(10)));
    connection.Post(record);
    return connection;
  };
  std::vector<LifelineConnection> strangers;
  strangers.push_back(stranger({RecordKind::kHello, 1, Concat(address.key, " host h, pid 1")}));
  strangers.push_back(stranger({RecordKind::kFail, 1, "let me end this, whoever you may be"}));
  strangers.push_back(stranger({static_cast<RecordKind>(200), 1, std::string(100, 'x')}));
  LifelineConnection silent(ConnectTo("127.0.0.1", address.port, After(10)));
  LifelineConnection gone(ConnectTo("127.0.0.1", address.port, After(10)));
  gone = LifelineConnection(Descriptor());

  std::thread thread([&] { other.Connect(address.Text(), 20); });
  hub.Connect("", 20);
  thread.join();
  for (auto& connection : strangers) {
    EXPECT_FALSE(connection.WaitForNext(After(10)));
    EXPECT_NE(connection.broken(), 0);
  }
  EXPECT_FALSE(hub.CurrentFailure(0));
  EXPECT_FALSE(other.CurrentFailure(0));
}

TEST(Lifeline, NonsenseIsRefused) {
  for (const char* address :
       {"", "127.0.0.1", "127.0.0.1;x;t", ";80;t", "127.0.0.1;80;", "127.0.0.1;99999;t"}) {
    Lifeline lifeline(1, 2, kName);
    EXPECT_EQ(Thrown([&] { lifeline.Connect(address, 1); }).kind(), ErrorKind::kInvalidArgument);
  }
  EXPECT_STREQ(Thrown([] { Lifeline(2, 2, kName); }).what(), "rank must lie in [0, 2), got 2");
  EXPECT_EQ(Thrown([] { Lifeline(1, 2, kName).Listen(); }).kind(), ErrorKind::kInvalidArgument);
  ::setenv("HVD_SPARSE_ABORT_SECONDS", "soon", 1);
  const Error error = Thrown([] { Lifeline(0, 2, kName); });
  ::unsetenv("HVD_SPARSE_ABORT_SECONDS");
  EXPECT_STREQ(error.what(),
               "HVD_SPARSE_ABORT_SECONDS must be a number of seconds, at least 0, got 'soon'");
  for (const char* number : {"0", "17", "-1", "four", "4.5"}) {
    ::setenv("HVD_SPARSE_CONNECTIONS", number, 1);
    EXPECT_EQ(Thrown([] { Lifeline(0, 2, kName); }).what(),
              Concat("HVD_SPARSE_CONNECTIONS must be a number in [1, 16], got '", number, "'"));
  }
  ::unsetenv("HVD_SPARSE_CONNECTIONS");
}

TEST(Lifeline, RankZeroDecidesOnTheConnectionsOfAll) {
  for (const auto& lifeline : ConnectedLifelines(3)) EXPECT_EQ(lifeline->connections(), 1);
  ::setenv("HVD_SPARSE_CONNECTIONS", "3", 1);
  for (const auto& lifeline : ConnectedLifelines(3)) EXPECT_EQ(lifeline->connections(), 3);
  ::unsetenv("HVD_SPARSE_CONNECTIONS");
}

}  // namespace
}  // namespace hvd_sparse

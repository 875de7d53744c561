/// Every rank learns of a death, and of nothing else. Ranks are processes.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "csrc/comm/lifeline.h"
#include "tests/csrc/lifeline_testing.h"
#include "tests/csrc/rank_process.h"

namespace hvd_sparse {
namespace {

/// Runs a rank process, which obeys the commands below.
int ServeCommands(std::unique_ptr<Lifeline> lifeline, const Instructions& instructions) {
  instructions.Answer("connected");
  while (true) {
    switch (instructions.Next()) {
      case 'r':  // report
        instructions.Answer(Report(*lifeline));
        break;
      case 'c':  // commit a step
        lifeline->Committed(1);
        instructions.Answer("committed");
        break;
      case 'a':
        lifeline->Acknowledge();
        instructions.Answer("acknowledged");
        break;
      case 'g':  // leave cleanly
        lifeline.reset();
        return 0;
      case 'x':  // exit without leaving
        ::_exit(0);
      case 'f': {  // fork, like a data loader
        const int worker = ::fork();
        if (worker == 0) {
          ::alarm(120);
          lifeline->Fail(ErrorKind::kExchangeFailed, "the worker must not matter");
          lifeline.reset();
          instructions.Answer(std::to_string(::getpid()));
          while (true) ::pause();
        }
        break;
      }
    }
  }
}

/// Ranks 1 to size - 1 as processes, and rank 0 in this process or as a process as well.
struct Ranks {
  Ranks(int size, bool hub_is_process) {
    std::string address;
    if (hub_is_process) {
      processes.push_back(std::make_unique<RankProcess>([&](const Instructions& instructions) {
        auto lifeline = std::make_unique<Lifeline>(0, size, kName);
        instructions.Answer(lifeline->Listen());
        lifeline->Connect("", 20);
        return ServeCommands(std::move(lifeline), instructions);
      }));
      address = processes[0]->Answer();
    } else {
      processes.emplace_back();
      hub = std::make_unique<Lifeline>(0, size, kName);
      address = hub->Listen();
    }
    for (int rank = 1; rank < size; ++rank) {
      processes.push_back(std::make_unique<RankProcess>([&](const Instructions& instructions) {
        auto lifeline = std::make_unique<Lifeline>(rank, size, kName);
        lifeline->Connect(address, 20);
        return ServeCommands(std::move(lifeline), instructions);
      }));
    }
    if (hub) hub->Connect("", 20);
    for (const auto& process : processes) {
      if (process != nullptr) {
        EXPECT_EQ(process->Answer(), "connected");
      }
    }
  }

  RankProcess& operator[](int rank) { return *processes[rank]; }

  /// Expects this report from all ranks except `rank`.
  void ExpectReports(int rank, const std::string& expected) {
    for (std::size_t other = 0; other < processes.size(); ++other) {
      if (processes[other] && static_cast<int>(other) != rank) processes[other]->Command('r');
    }
    if (hub != nullptr) {
      EXPECT_EQ(Report(*hub), expected);
    }
    for (std::size_t other = 0; other < processes.size(); ++other) {
      if (processes[other] && static_cast<int>(other) != rank) {
        EXPECT_EQ(processes[other]->Answer(), expected) << "on rank " << other;
      }
    }
  }

  std::string Death(int rank) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return Concat("rank ", rank, " of ", processes.size(), " has died (host ", host, ", pid ",
                  processes[rank]->pid(), ") in exchange 'optimizer.0'");
  }

  std::unique_ptr<Lifeline> hub;
  std::vector<std::unique_ptr<RankProcess>> processes;
};

/// Far less than a rank would wait otherwise, and enough for a busy machine.
constexpr std::chrono::seconds kAtOnce(30);

class LifelineProcesses : public testing::TestWithParam<int> {};

TEST_P(LifelineProcesses, AKilledRankIsReportedByAllOthersWithinSeconds) {
  for (const int victim : {GetParam() - 1, 0}) {
    Ranks ranks(GetParam(), victim == 0);
    const auto start = Clock::now();
    ranks[victim].Kill(SIGKILL);
    ranks.ExpectReports(victim, ranks.Death(victim));
    const std::chrono::duration<double, std::milli> taken = Clock::now() - start;
    EXPECT_LT(taken.count(), 1000 * kAtOnce.count());
    std::printf("all %d others knew of the death of rank %d after %.1f ms\n", GetParam() - 1,
                victim, taken.count());
  }
}
INSTANTIATE_TEST_SUITE_P(UpTo32Ranks, LifelineProcesses, testing::Values(2, 4, 32));

TEST(Lifeline, ARankThatExitsWithoutGoodbyeHasDied) {
  Ranks ranks(3, false);
  ranks[1].Command('x');
  ranks.ExpectReports(1, ranks.Death(1));
}

TEST(Lifeline, ARankThatExitsAfterItsGoodbyeHasLeft) {
  Ranks ranks(3, false);
  ranks[2].Command('g');
  EXPECT_EQ(ranks[2].WaitForExit(), 0);
  ranks.ExpectReports(2, "rank 2 of 3 left exchange 'optimizer.0'");
}

TEST(Lifeline, ARankThatLeavesDoesNotWaitForADeadOne) {
  for (const bool hub_leaves : {false, true}) {
    Ranks ranks(3, hub_leaves);
    const int leaving = hub_leaves ? 0 : 2;
    ranks[leaving].Command('c');
    EXPECT_EQ(ranks[leaving].Answer(), "committed");
    ranks[leaving].Command('g');
    const auto start = Clock::now();
    ranks[1].Kill(SIGKILL);
    EXPECT_EQ(ranks[leaving].WaitForExit(), 0);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  }
}

TEST(Lifeline, AStoppedRankIsNotDead) {
  Ranks ranks(3, false);
  ranks[1].Kill(SIGSTOP);
  EXPECT_FALSE(Eventually([&] { return ranks.hub->CurrentFailure(0).has_value(); }, 0.5));
  ranks[1].Kill(SIGCONT);
  ranks[1].Command('g');
  ranks.ExpectReports(1, "rank 1 of 3 left exchange 'optimizer.0'");
}

TEST(Lifeline, AStoppedHubDoesNotHoldUpALeavingRank) {
  Ranks ranks(3, true);
  ranks[0].Kill(SIGSTOP);
  const auto start = Clock::now();
  ranks[1].Command('g');
  EXPECT_EQ(ranks[1].WaitForExit(), 0);
  EXPECT_LT(Clock::now() - start, kAtOnce);
  ranks[0].Kill(SIGCONT);
  ranks.ExpectReports(1, "rank 1 of 3 left exchange 'optimizer.0'");
}

TEST(Lifeline, AForkedWorkerHidesNoDeathAndSaysNothing) {
  for (const int victim : {1, 0}) {
    Ranks ranks(3, victim == 0);
    ranks[victim].Command('f');
    const int worker = std::stoi(ranks[victim].Answer());
    if (ranks.hub != nullptr) {
      EXPECT_FALSE(ranks.hub->CurrentFailure(0));
    }
    ranks[victim].Kill(SIGKILL);
    ranks.ExpectReports(victim, ranks.Death(victim));
    EXPECT_EQ(::kill(worker, SIGKILL), 0);
  }
}

TEST(Lifeline, ADeathOutranksWhatItLeadsTo) {
  Ranks ranks(3, false);
  ranks[1].Kill(SIGKILL);
  ranks.ExpectReports(1, ranks.Death(1));
  ranks.hub->Fail(ErrorKind::kExchangeFailed, "I am lost without rank 1");
  EXPECT_EQ(Report(*ranks.hub, kNever), ranks.Death(1));
  ranks[2].Command('g');
  ranks[2].WaitForExit();
  EXPECT_EQ(Report(*ranks.hub, 0), ranks.Death(1));
}

// ----------------------------------------------------------------- ending processes that hang

/// Shortens the time from an unacknowledged death to the abort to 0.2 s while it lives.
struct ShortAbort {
  ShortAbort() { ::setenv("HVD_SPARSE_ABORT_SECONDS", "0.2", 1); }
  ~ShortAbort() { ::unsetenv("HVD_SPARSE_ABORT_SECONDS"); }
};

/// Starts rank 1 of two as a process, whose stderr goes into its answers.
std::unique_ptr<RankProcess> RankOne(const std::string& address) {
  return std::make_unique<RankProcess>([&](const Instructions& instructions) {
    instructions.TakeStderr();
    auto lifeline = std::make_unique<Lifeline>(1, 2, kName);
    lifeline->Connect(address, 20);
    return ServeCommands(std::move(lifeline), instructions);
  });
}

/// Starts rank 0 of two as a process.
std::unique_ptr<RankProcess> RankZero() {
  return std::make_unique<RankProcess>([&](const Instructions& instructions) {
    auto lifeline = std::make_unique<Lifeline>(0, 2, kName);
    instructions.Answer(lifeline->Listen());
    lifeline->Connect("", 20);
    return ServeCommands(std::move(lifeline), instructions);
  });
}

TEST(LifelineAbort, AProcessThatDoesNotNoticeADeathIsEnded) {
  const ShortAbort short_abort;
  const auto zero = RankZero();
  const auto one = RankOne(zero->Answer());
  EXPECT_EQ(one->Answer(), "connected");
  zero->Kill(SIGKILL);
  const std::string text = one->Answer();
  EXPECT_EQ(text.find("hvd_sparse: rank 0 of 2 has died (host "), 0u) << text;
  EXPECT_NE(text.find("; this process is still inside a collective that can no longer finish, "
                      "ending it"),
            std::string::npos)
      << text;
  EXPECT_EQ(one->WaitForExit(), 1);
}

TEST(LifelineAbort, AProcessThatKnowsOfTheDeathGoesOn) {
  const ShortAbort short_abort;
  const auto zero = RankZero();
  const auto one = RankOne(zero->Answer());
  EXPECT_EQ(one->Answer(), "connected");
  one->Command('r');
  zero->Kill(SIGKILL);
  EXPECT_NE(one->Answer(), "(none)");
  one->Command('a');
  EXPECT_EQ(one->Answer(), "acknowledged");
  EXPECT_EQ(one->Answer(500), "(none)");
  one->Command('g');
  EXPECT_EQ(one->WaitForExit(), 0);
}

TEST(Lifeline, WhoeverLeavesIsWarnedOfADeathOfWhichNobodyHasHeard) {
  for (const bool known : {false, true}) {
    const auto zero = RankZero();
    const auto one = RankOne(zero->Answer());
    EXPECT_EQ(one->Answer(), "connected");
    one->Command('r');  // waits for the report
    zero->Kill(SIGKILL);
    const std::string death = one->Answer();
    if (known) {
      one->Command('a');
      EXPECT_EQ(one->Answer(), "acknowledged");
    }
    one->Command('g');
    EXPECT_EQ(one->Answer(), known ? "(none)" : "hvd_sparse: warning: " + death);
    EXPECT_EQ(one->WaitForExit(), 0);
  }
}

TEST(LifelineAbort, ARankThatLeavesEndsNobody) {
  const ShortAbort short_abort;
  const auto zero = RankZero();
  const auto one = RankOne(zero->Answer());
  EXPECT_EQ(one->Answer(), "connected");
  zero->Command('g');
  EXPECT_EQ(zero->WaitForExit(), 0);
  EXPECT_EQ(one->Answer(500), "(none)");
  one->Command('g');
  EXPECT_EQ(one->WaitForExit(), 0);
}

}  // namespace
}  // namespace hvd_sparse

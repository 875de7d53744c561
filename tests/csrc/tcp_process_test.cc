/// No rank hangs when another one dies or stops. Rank 0 is this process, rank 1 a child.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/tcp_communicator.h"
#include "tests/csrc/lifeline_testing.h"
#include "tests/csrc/rank_process.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kLong = std::int64_t{64} << 20u;  // more than all buffers hold

/// Swaps a number with the other rank.
void Swap(Communicator& comm) {
  const int peer = 1 - comm.Rank();
  int sent = comm.Rank(), received = -1;
  const Outgoing out{peer, &sent, sizeof(sent)};
  Incoming in{peer, &received, sizeof(received)};
  comm.Transfer({&out, 1}, {&in, 1}, "a swap");
  EXPECT_EQ(received, peer);
}

/// Swaps at every 's'; forks a worker, as data loaders do, at an 'f'.
void ServeCommands(Communicator& comm, const Instructions& instructions) {
  for (;;) {
    switch (instructions.Next()) {
      case 's':
        Swap(comm);
        break;
      case 'f':
        if (::fork() == 0) {
          ::alarm(120);
          instructions.Answer(std::to_string(::getpid()));
          for (;;) ::pause();
        }
        break;
      default:
        return;
    }
  }
}

/// Two ranks that have already swapped once.
struct Pair {
  explicit Pair(const WaitLimits& limits = {}) {
    auto hub = std::make_shared<Lifeline>(0, 2, kName);
    TcpPort port;
    const std::string hub_address = hub->Listen(), address = port.Address();
    process = std::make_unique<RankProcess>([&](const Instructions& instructions) {
      TcpPort own;
      instructions.Answer(own.Address());
      auto lifeline = std::make_shared<Lifeline>(1, 2, kName);
      lifeline->Connect(hub_address, 20);
      const auto comm = MakeTcpCommunicator({1, {address, own.Address()}, {}}, &own, lifeline);
      ServeCommands(*comm, instructions);
      return 0;
    });
    const std::vector<std::string> addresses{address, process->Answer()};
    hub->Connect("", 20);
    here = MakeTcpCommunicator({0, addresses, limits}, &port, hub);
    process->Command('s');
    Swap(*here);
  }

  /// Returns this rank's error when it sends, or waits for, a long message.
  Error Meets(bool sends) {
    std::vector<char> memory(static_cast<std::size_t>(kLong));
    const Outgoing out{1, memory.data(), kLong};
    Incoming in{1, memory.data(), kLong};
    try {
      here->Transfer({&out, sends ? 1 : 0}, {&in, sends ? 0 : 1}, "bucket 3");
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorKind::kInvalidArgument, "nothing was thrown");
  }

  std::unique_ptr<RankProcess> process;
  std::unique_ptr<Communicator> here;
};

void ExpectDeath(const Error& error, Clock::time_point killed) {
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(30));  // else it would wait for ever
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_EQ(std::string(error.what()).find("rank 1 of 2 has died (host "), 0u) << error.what();
}

TEST(TcpProcesses, AKilledPeerEndsTheWait) {
  for (const bool sends : {true, false}) {
    Pair pair;
    const auto start = Clock::now();
    pair.process->Kill(SIGKILL);
    ExpectDeath(pair.Meets(sends), start);
  }
}

TEST(TcpProcesses, AForkedWorkerHidesNoDeath) {
  Pair pair;
  pair.process->Command('f');
  const int worker = std::stoi(pair.process->Answer());
  const auto start = Clock::now();
  pair.process->Kill(SIGKILL);
  ExpectDeath(pair.Meets(false), start);
  EXPECT_EQ(::kill(worker, SIGKILL), 0);
}

TEST(TcpProcesses, AStoppedPeerIsNamedThenGivenUp) {
  for (const bool sends : {true, false}) {
    WaitLimits limits;
    limits.warn_seconds = 0.1;
    limits.fail_seconds = 1.5;  // well above the other limit, for a busy machine
    Pair pair(limits);
    pair.process->Kill(SIGSTOP);
    testing::internal::CaptureStderr();
    const Error error = pair.Meets(sends);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "hvd_sparse: warning: rank 0 has waited 0.1 s for rank 1 in bucket 3; it goes on "
              "waiting\n");
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_STREQ(
        error.what(),
        "rank 0 gave up waiting for rank 1 after 1.5 s (HVD_SPARSE_TIMEOUT_SECONDS) in bucket 3");
  }
}

}  // namespace
}  // namespace hvd_sparse

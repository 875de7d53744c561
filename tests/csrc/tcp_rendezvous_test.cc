/// Ranks find each other, even if the link is down at first.

#include "csrc/comm/tcp_rendezvous.h"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/csrc/rank_process.h"

namespace hvd_sparse {
namespace {

/// Moves to a network namespace without a link, so that nobody is reachable; returns true if
/// permitted.
bool LeaveTheNetwork() {
  return ::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}

void BringUpLoopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP;
  ::ioctl(socket, SIOCSIFFLAGS, &request);
  ::close(socket);
}

/// Two ranks of this process that connect to each other.
struct TwoRanks {
  explicit TwoRanks(bool persists, bool is_refused = false) {
    Listener listeners[] = {ListenAt("0.0.0.0"), ListenAt("0.0.0.0")};
    Listener none;
    const std::string loopback = Listen(&none).loopback;
    std::vector<ListenAddress> addresses;
    for (const Listener& listener : listeners) {
      addresses.push_back({{"127.0.0.1"}, listener.port, NewKey(), loopback});
    }
    if (is_refused) listeners[1] = ListenAt("0.0.0.0");  // nobody listens at the former port
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(std::make_unique<TcpRendezvous>(rank, addresses, std::move(listeners[rank]),
                                                      1, persists));
      ranks.back()->Request(1 - rank);
    }
  }

  /// Polls for `seconds`, or until nobody waits any more; returns the outcome.
  std::string Look(double seconds) {
    std::string news;
    for (const auto deadline = After(seconds); Clock::now() < deadline;) {
      for (const auto& rank : ranks) {
        for (const TcpRendezvous::Arrival& arrival : rank->Advance()) {
          news += arrival.socket ? "met " : arrival.problem;
        }
      }
      if (!ranks[0]->busy() && !ranks[1]->busy()) break;
      ::usleep(1000);
    }
    return news;
  }

  std::vector<std::unique_ptr<TcpRendezvous>> ranks;
};

TEST(TcpRendezvous, ALinkThatComesBackIsNoFaultForThoseWhoPersist) {
  RankProcess process([](const Instructions& instructions) {
    const bool alone = LeaveTheNetwork();
    instructions.Answer(alone ? "alone" : "not permitted");
    if (!alone) return 0;
    TwoRanks persistent(true), plain(false);
    instructions.Answer(persistent.Look(0.2));
    instructions.Answer(persistent.ranks[0]->Obstacle(1));
    instructions.Answer(plain.Look(0.2));
    BringUpLoopback();
    instructions.Answer(persistent.Look(20));
    instructions.Answer(persistent.ranks[0]->Obstacle(1));
    return 0;
  });
  if (process.Answer() != "alone") GTEST_SKIP() << "no network of its own is permitted here";
  EXPECT_EQ(process.Answer(), "");
  for (const std::string& told : {process.Answer(), process.Answer()}) {
    EXPECT_EQ(told.find("cannot connect to 127.0.0.1, port "), 0u) << told;
    EXPECT_NE(told.find("unreachable"), std::string::npos) << told;
  }
  EXPECT_EQ(process.Answer(), "met met ");
  EXPECT_EQ(process.Answer(), "");
}

TEST(TcpRendezvous, AnotherHostsLoopbackAddressIsNotTried) {
  Listener elsewhere, own;
  ListenAddress address = Listen(&elsewhere);
  address.ips = {"127.0.0.1"};
  EXPECT_EQ(address.Reachable(), address.ips);
  address.loopback = "another boot net:[4026531840]";
  EXPECT_TRUE(address.Reachable().empty());

  TcpRendezvous rank0(0, {Listen(&own), address}, std::move(own), 1, true);
  rank0.Request(1);
  const auto arrivals = rank0.Advance();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_NE(arrivals[0].problem.find("loopback addresses alone, on another host"),
            std::string::npos)
      << arrivals[0].problem;
  EXPECT_FALSE(WaitFor(elsewhere.socket.get(), POLLIN, After(0.05)));
}

TEST(TcpRendezvous, ThoseWhoPersistComeAgainToARankThatClosedTheirConnection) {
  Listener listeners[2];
  std::vector<ListenAddress> addresses{Listen(&listeners[0]), Listen(&listeners[1])};
  addresses[1].ips = {"127.0.0.1"};
  TcpRendezvous caller(0, addresses, std::move(listeners[0]), 1, true);
  caller.Request(1);
  ASSERT_TRUE(caller.Advance().empty());
  ASSERT_TRUE(WaitFor(listeners[1].socket.get(), POLLIN, After(5)));
  Accept(listeners[1].socket).Close();  // as a rank with too many guests does

  TcpRendezvous listener(1, addresses, std::move(listeners[1]), 1, true);
  listener.Request(0);
  int met = 0;
  for (const auto deadline = After(20); met < 2 && Clock::now() < deadline;) {
    for (TcpRendezvous* rank : {&caller, &listener}) {
      for (const TcpRendezvous::Arrival& arrival : rank->Advance()) {
        EXPECT_TRUE(arrival.socket) << arrival.problem;
        ++met;
      }
    }
  }
  EXPECT_EQ(met, 2);
}

TEST(TcpRendezvous, ARefusedConnectionIsGivenUpAtOnceAlsoByThoseWhoPersist) {
  const std::string given_up = TwoRanks(true, true).Look(0.2);
  EXPECT_EQ(given_up.find("cannot connect to 127.0.0.1, port "), 0u) << given_up;
  EXPECT_NE(given_up.find("refused"), std::string::npos) << given_up;
}

}  // namespace
}  // namespace hvd_sparse

/// Sets up the connections of a lifeline; see the header.

#include "csrc/comm/lifeline_rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/admission.h"
#include "csrc/comm/handshake.h"

namespace hvd_sparse {
namespace {

// The interval at which rank 0 looks for guests that have run out of time.
constexpr double kLookSeconds = 0.1;

constexpr double kSlowSeconds = 5e-3;  // a round trip from which on several connections are made
constexpr int kConnectionsIfSlow = 8;
constexpr int kConnectionsOfARank = 512;  // at most, with all of its peers together

/// Returns "host h, pid n" for this process.
std::string Who() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return Concat("host ", host, ", pid ", ::getpid());
}

/// Returns "rank 2 of 4 (host h, pid n)".
std::string NameOf(int rank, int size, const std::string& host_and_pid) {
  return Concat("rank ", rank, " of ", size,
                host_and_pid.empty() ? "" : Concat(" (", host_and_pid, ")"));
}

/// The ranks that have connected to rank 0, until all have.
class Gathering {
 public:
  Gathering(Listener listener, const std::string& key, int size)
      : size_(size), admission_(std::move(listener), key, 0, 1, size) {}

  bool complete() const {
    const auto is_known = [](const auto& peer) { return !peer.second.host_and_pid.empty(); };
    return std::count_if(peers_.begin(), peers_.end(), is_known) == size_ - 1;
  }

  /// Waits for an event and handles it. Returns a rank that has died, or -1.
  int Advance(Clock::time_point deadline) {
    std::vector<pollfd> polled;
    for (const auto& [rank, peer] : peers_) {
      polled.push_back({peer.connection.fd(), peer.connection.events(), 0});
    }
    admission_.AddTo(true, &polled);
    ::poll(polled.data(), polled.size(), PollTimeout(std::min(deadline, After(kLookSeconds))));

    for (Admission::Admitted& admitted : admission_.Advance(true)) {
      BreakWhenStuck(admitted.socket);
      peers_.emplace(admitted.rank,
                     LifelinePeer{LifelineConnection(std::move(admitted.socket)), ""});
    }
    for (auto& [rank, peer] : peers_) {
      peer.connection.Flush();
      peer.connection.Receive();
      while (const auto record = peer.connection.Next()) {
        if (record->kind != RecordKind::kHello || !peer.host_and_pid.empty()) return rank;
        peer.host_and_pid = record->text;
        peer.connection.Post({RecordKind::kWelcome, 0, Who()});
      }
      if (peer.connection.broken() != 0) return rank;
    }
    return -1;
  }

  std::string Name(int rank) const { return NameOf(rank, size_, peers_.at(rank).host_and_pid); }

  /// Returns the ranks that have not connected: "ranks 2, 3 of 4".
  std::string Missing() const {
    constexpr int kNamed = 16;
    std::ostringstream text;
    int missing = 0;
    for (int rank = 1; rank < size_; ++rank) {
      const auto peer = peers_.find(rank);
      if (peer != peers_.end() && !peer->second.host_and_pid.empty()) continue;
      if (++missing <= kNamed) text << (missing > 1 ? ", " : "") << rank;
    }
    if (missing > kNamed) text << " and " << missing - kNamed << " more";
    return Concat(missing > 1 ? "ranks " : "rank ", text.str(), " of ", size_);
  }

  /// Ends the rendezvous on all ranks that have connected.
  [[noreturn]] void Fail(const std::string& reason) {
    for (auto& [rank, peer] : peers_) peer.connection.Post({RecordKind::kFail, 0, reason});
    Throw(ErrorKind::kPeerLost, reason);
  }

  LifelineStart Start(int asked) {
    double slowest = 0;
    for (const auto& [rank, peer] : peers_) {
      slowest = std::max(slowest, peer.connection.RoundTripSeconds());
    }
    const int several = std::clamp(kConnectionsOfARank / (size_ - 1), 1, kConnectionsIfSlow);
    Record start{RecordKind::kStart};
    start.steps = asked != 0 ? asked : slowest < kSlowSeconds ? 1 : several;
    for (auto& [rank, peer] : peers_) peer.connection.Post(start);
    return {std::move(peers_), static_cast<int>(start.steps)};
  }

 private:
  const int size_;
  Admission admission_;
  LifelinePeers peers_;
};

/// Completes the handshake with rank 0. Waits until `patience` for its proof, and until `deadline`
/// for admission.
HandshakeStatus Complete(CallerHandshake* handshake, Clock::time_point patience,
                         Clock::time_point deadline) {
  for (;;) {
    const HandshakeStatus status = handshake->Advance();
    if (status != HandshakeStatus::kUnderWay) return status;
    const auto limit = handshake->found() ? deadline : std::min(patience, deadline);
    if (!WaitFor(handshake->fd(), handshake->events(), limit)) return status;
  }
}

/// Introduces this rank to rank 0, which has admitted it, and waits until all others have
/// connected.
LifelineStart AwaitStart(Descriptor socket, int rank, int size, const std::string& name,
                         Clock::time_point deadline) {
  BreakWhenStuck(socket);
  LifelineConnection connection(std::move(socket));
  connection.Post({RecordKind::kHello, rank, Who()});
  std::string host_and_pid;
  int connections = 0;
  while (connections == 0) {
    // Rank 0 knows which ranks are missing, so let it time out first.
    const auto record = connection.WaitForNext(deadline + std::chrono::seconds(1));
    if (record && record->kind == RecordKind::kWelcome) {
      host_and_pid = record->text;
      continue;
    }
    if (record && record->kind == RecordKind::kStart && record->steps >= 1 &&
        record->steps <= kMostConnections) {
      connections = static_cast<int>(record->steps);
      continue;
    }
    if (record && record->kind == RecordKind::kFail) Throw(ErrorKind::kPeerLost, record->text);
    Throw(ErrorKind::kPeerLost, NameOf(0, size, host_and_pid),
          " has gone while the ranks connected to it ", "for exchange '", name, "'");
  }
  LifelinePeers peers;
  peers.emplace(0, LifelinePeer{std::move(connection), host_and_pid});
  return {std::move(peers), connections};
}

}  // namespace

LifelineStart AwaitPeers(Listener listener, const ListenAddress& address, int size,
                         const std::string& name, double seconds, int asked) {
  const auto deadline = After(seconds);
  Gathering gathering(std::move(listener), address.key, size);
  while (!gathering.complete()) {
    if (Clock::now() >= deadline) {
      gathering.Fail(Concat(gathering.Missing(), " did not connect to rank 0 (", address.Place(),
                            ") within ", seconds, " s for exchange '", name, "'"));
    }
    if (const int dead = gathering.Advance(deadline); dead >= 0) {
      gathering.Fail(Concat(gathering.Name(dead), " has died while the ranks connected for ",
                            "exchange '", name, "'"));
    }
  }
  return gathering.Start(asked);
}

LifelineStart JoinPeers(const ListenAddress& address, int rank, int size, const std::string& name,
                        double seconds) {
  const auto deadline = After(seconds);
  const std::vector<std::string> ips = address.Reachable();
  std::string problem = "it offers loopback addresses alone, on another host";
  // True if every address refuses: rank 0 listened before it published them.
  bool is_refused = ips.empty();
  // An address may lead nowhere, or to a stranger's port, so the first rounds are short.
  for (double patience = 1.0; Clock::now() < deadline && !is_refused; patience *= 2) {
    is_refused = true;
    for (const std::string& ip : ips) {
      CallerHandshake handshake(BeginConnecting(ip, address.port), address.key, rank, 0);
      switch (Complete(&handshake, After(patience), deadline)) {
        case HandshakeStatus::kDone:
          return AwaitStart(handshake.Take(), rank, size, name, deadline);
        case HandshakeStatus::kUnderWay:
          problem = handshake.connected() ? "connected, but rank 0 did not answer"
                                          : "Connection timed out";
          break;
        case HandshakeStatus::kFailed:
          problem = handshake.problem();
          break;
      }
      is_refused &= handshake.error() == ECONNREFUSED;
    }
    if (!is_refused) ::poll(nullptr, 0, std::min(50, PollTimeout(deadline)));
  }
  Throw(ErrorKind::kPeerLost, "rank ", rank, " of ", size, " could not connect to rank 0 (",
        address.Place(), ") ", is_refused ? "" : Concat("within ", seconds, " s "),
        "for exchange '", name, "': ", problem);
}

}  // namespace hvd_sparse

/// How the connections of a lifeline come about; see the header.

#include "csrc/comm/lifeline_rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <sstream>
#include <utility>
#include <vector>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr double kStrangerSeconds = 10.0;  // a guest who says nothing for so long is dropped

/// Connected, but not yet introduced.
struct Guest {
  LifelineConnection connection;
  Clock::time_point patience = After(kStrangerSeconds);
};

/// "host h, pid n" of this process.
std::string Who() {
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  return Concat("host ", host, ", pid ", ::getpid());
}

std::string HelloText(const std::string& token, int size) {
  return Concat(token, ' ', size, ' ', Who());
}

/// What a guest says of itself, if it belongs here; else an empty string.
std::string Introduction(const Record& hello, const std::string& token, int size) {
  const std::string expected = Concat(token, ' ', size, ' ');
  const bool belongs = hello.kind == RecordKind::kHello && hello.rank > 0 && hello.rank < size &&
                       hello.text.compare(0, expected.size(), expected) == 0;
  return belongs ? hello.text.substr(expected.size()) : "";
}

/// "ranks 2, 3 of 4": those who are not in `present`.
std::string Missing(const LifelinePeers& present, int size) {
  constexpr int kNamed = 16;
  std::ostringstream text;
  int missing = 0;
  for (int rank = 1; rank < size; ++rank) {
    if (present.count(rank) != 0) continue;
    if (++missing <= kNamed) text << (missing > 1 ? ", " : "") << rank;
  }
  if (missing > kNamed) text << " and " << missing - kNamed << " more";
  return Concat(missing > 1 ? "ranks " : "rank ", text.str(), " of ", size);
}

void AwaitEvents(const Listener& listener, const std::list<Guest>& guests,
                 const LifelinePeers& peers, Clock::time_point deadline) {
  std::vector<pollfd> polled{{listener.socket.get(), POLLIN, 0}};
  for (const Guest& guest : guests) {
    polled.push_back({guest.connection.fd(), guest.connection.events(), 0});
    deadline = std::min(deadline, guest.patience);
  }
  for (const auto& [rank, peer] : peers) {
    polled.push_back({peer.connection.fd(), peer.connection.events(), 0});
  }
  ::poll(polled.data(), polled.size(), PollTimeout(deadline));
}

/// Moves the guests who have introduced themselves to `peers`, drops strangers, keeps the others.
void Welcome(std::list<Guest>* guests, LifelinePeers* peers, const std::string& token, int size) {
  for (auto guest = guests->begin(); guest != guests->end();) {
    LifelineConnection& connection = guest->connection;
    connection.Receive();
    if (const auto record = connection.Next()) {
      const std::string who = Introduction(*record, token, size);
      if (!who.empty()) {
        connection.Post({RecordKind::kWelcome, 0, Who()});
        // A rank that comes twice has given its first connection up.
        peers->insert_or_assign(record->rank, LifelinePeer{std::move(connection), who});
      }
    } else if (connection.broken() == 0 && Clock::now() < guest->patience) {
      ++guest;
      continue;
    }
    guest = guests->erase(guest);
  }
}

/// Forgets those who have gone again, or try again.
void DropGone(LifelinePeers* peers) {
  for (auto peer = peers->begin(); peer != peers->end();) {
    LifelineConnection& connection = peer->second.connection;
    connection.Flush();
    connection.Receive();
    peer = connection.broken() != 0 ? peers->erase(peer) : std::next(peer);
  }
}

}  // namespace

LifelinePeers AwaitPeers(const Listener& listener, const ListenAddress& address, int size,
                         const std::string& name, double seconds) {
  const auto deadline = After(seconds);
  LifelinePeers peers;
  std::list<Guest> guests;
  while (static_cast<int>(peers.size()) < size - 1) {
    if (Clock::now() >= deadline) {
      const std::string reason =
          Concat(Missing(peers, size), " did not connect to rank 0 (", address.Place(), ") within ",
                 seconds, " s for exchange '", name, "'");
      for (auto& [rank, peer] : peers) peer.connection.Post({RecordKind::kFail, 0, reason});
      Throw(ErrorKind::kPeerLost, reason);
    }
    AwaitEvents(listener, guests, peers, deadline);
    while (Descriptor socket = Accept(listener.socket)) {
      BreakWhenStuck(socket);
      guests.push_back({LifelineConnection(std::move(socket))});
    }
    Welcome(&guests, &peers, address.token, size);
    DropGone(&peers);
  }
  for (auto& [rank, peer] : peers) peer.connection.Post({RecordKind::kStart});
  return peers;
}

LifelinePeers JoinPeers(const ListenAddress& address, int rank, int size, const std::string& name,
                        double seconds) {
  const auto deadline = After(seconds);
  std::string problem = "no time";
  // An address may lead nowhere, or to somebody else's port: little patience at first.
  for (double patience = 1.0; Clock::now() < deadline; patience *= 2) {
    for (const std::string& ip : address.ips) {
      const auto limit = std::min(deadline, After(patience));
      Descriptor socket = ConnectTo(ip, address.port, limit);
      if (!socket) {
        problem = std::strerror(errno);
        continue;
      }
      BreakWhenStuck(socket);
      LifelineConnection connection(std::move(socket));
      connection.Post({RecordKind::kHello, rank, HelloText(address.token, size)});
      const auto welcome = connection.WaitForNext(limit);
      if (!welcome || welcome->kind != RecordKind::kWelcome) {
        problem = "connected, but rank 0 did not answer";
        continue;
      }

      // Rank 0 knows who is missing: let it be the first to lose patience.
      const auto start = connection.WaitForNext(deadline + std::chrono::seconds(1));
      if (!start || start->kind != RecordKind::kStart) {
        Throw(ErrorKind::kPeerLost,
              start && start->kind == RecordKind::kFail
                  ? start->text
                  : Concat("rank 0 of ", size, " (", welcome->text,
                           ") has gone while the ranks connected to it for exchange '", name, "'"));
      }
      LifelinePeers peers;
      peers.emplace(0, LifelinePeer{std::move(connection), welcome->text});
      return peers;
    }
    ::poll(nullptr, 0, std::min(50, PollTimeout(deadline)));
  }
  Throw(ErrorKind::kPeerLost, "rank ", rank, " of ", size, " could not connect to rank 0 (",
        address.Place(), ") within ", seconds, " s for exchange '", name, "': ", problem);
}

}  // namespace hvd_sparse

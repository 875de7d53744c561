#include "csrc/comm/tcp_rendezvous.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr double kSecondsBetweenAddresses = 1.0;
constexpr double kSecondsBetweenRounds = 0.5;  // of all addresses
constexpr double kRoundsSeconds = 60.0;        // a firewall may say for ever that a link is down
constexpr double kStrangerSeconds = 10.0;      // a guest who says nothing for so long is dropped
constexpr std::size_t kHelloBytes = kTokenDigits + sizeof(int);

/// What a rank says to the one that it has reached: that one's token, and who it is itself.
std::string Hello(const std::string& token, int rank) {
  std::string hello = token;
  hello.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  return hello;
}

/// Sends a few bytes, which fit into the buffer of a new connection; whether that worked.
bool SendAtOnce(const Descriptor& socket, const std::string& bytes) {
  const int fd = socket.get();
  if (fd < 0) return false;
  const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size());
}

/// Whether an error says that nobody can be reached over a link now.
bool IsOfLink(int error) {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN ||
         error == ETIMEDOUT;
}

enum class Reading { kNotYet, kComplete, kBroken };

/// Reads until `*bytes` holds `size` bytes, and no more: messages may follow. Where the connection
/// has broken, errno says why; 0: the peer has closed it.
Reading ReadUpTo(std::size_t size, const Descriptor& socket, std::string* bytes) {
  const int fd = socket.get();
  if (fd < 0) return Reading::kBroken;
  while (bytes->size() < size) {
    char buffer[kHelloBytes];
    const ssize_t got = ::recv(fd, buffer, size - bytes->size(), 0);
    if (got > 0) {
      bytes->append(buffer, static_cast<std::size_t>(got));
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      return Reading::kNotYet;
    }
    if (got == 0) errno = 0;
    return Reading::kBroken;
  }
  return Reading::kComplete;
}

}  // namespace

TcpRendezvous::TcpRendezvous(int rank, std::vector<ListenAddress> addresses, Listener listener,
                             bool persists)
    : rank_(rank),
      addresses_(std::move(addresses)),
      listener_(std::move(listener)),
      persists_(persists) {
  for (const ListenAddress& address : addresses_) {
    Require(address.token.size() == kTokenDigits, "a token has ", kTokenDigits, " digits, got '",
            address.token, "'");
  }
}

void TcpRendezvous::Want(int peer) {
  if (peer > rank_) {
    calls_[peer];
  } else if (arrived_.count(peer) == 0) {
    awaited_.insert(peer);
  }
}

std::string TcpRendezvous::Obstacle(int peer) const {
  const auto call = calls_.find(peer);
  if (call == calls_.end() || call->second.problem.empty()) return {};
  // One that was reached at another address may be busy, which is no obstacle.
  for (const Attempt& attempt : call->second.attempts) {
    if (attempt.connected) return {};
  }
  return CannotConnect(peer, call->second);
}

std::string TcpRendezvous::CannotConnect(int peer, const Call& call) const {
  const ListenAddress& address = addresses_[static_cast<std::size_t>(peer)];
  return Concat("cannot connect to ", address.Place(), ": ", call.problem);
}

std::vector<TcpRendezvous::Arrival> TcpRendezvous::Advance() {
  std::vector<Arrival> arrivals;
  for (auto call = calls_.begin(); call != calls_.end();) {
    Arrival arrival{call->first, {}, {}};
    if (GoOn(call->first, &call->second, &arrival)) {
      arrivals.push_back(std::move(arrival));
      call = calls_.erase(call);
    } else {
      ++call;
    }
  }
  if (!awaited_.empty()) AcceptGuests(&arrivals);
  return arrivals;
}

void TcpRendezvous::AddTo(std::vector<pollfd>* polled) const {
  for (const auto& [peer, call] : calls_) {
    for (const Attempt& attempt : call.attempts) {
      const int events = attempt.connected ? POLLIN : POLLOUT;
      polled->push_back({attempt.socket.get(), static_cast<short>(events), 0});
    }
  }
  if (awaited_.empty()) return;
  polled->push_back({listener_.socket.get(), POLLIN, 0});
  for (const Guest& guest : guests_) polled->push_back({guest.socket.get(), POLLIN, 0});
}

/// Whether the call is over, one way or the other; `arrival` then says how.
bool TcpRendezvous::GoOn(int peer, Call* call, Arrival* arrival) {
  for (;;) {
    for (auto attempt = call->attempts.begin(); attempt != call->attempts.end();) {
      const Problem problem = GoOn(peer, &*attempt);
      if (!problem.text.empty()) {
        Note(problem, call);
        attempt = call->attempts.erase(attempt);
      } else if (attempt->answer.size() == kTokenDigits) {
        arrival->socket = std::move(attempt->socket);
        return true;
      } else {
        ++attempt;
      }
    }
    if (call->tried == addresses_[static_cast<std::size_t>(peer)].ips.size()) {
      if (!call->attempts.empty()) return false;
      if (!persists_ || !call->link_is_down) break;
      if (!call->give_up) call->give_up = After(kRoundsSeconds);
      if (Clock::now() >= *call->give_up) break;
      call->tried = 0;
      call->link_is_down = false;
      call->next_time = After(kSecondsBetweenRounds);
    }
    const bool failed = call->tried > 0 && call->attempts.empty();
    if (!failed && Clock::now() < call->next_time) return false;
    TryNextAddress(peer, call);
  }
  arrival->problem = CannotConnect(peer, *call);
  return true;
}

void TcpRendezvous::Note(const Problem& problem, Call* call) {
  call->problem = problem.text;
  call->link_is_down |= problem.of_link;
}

TcpRendezvous::Problem TcpRendezvous::GoOn(int peer, Attempt* attempt) {
  const auto of = [](int error) { return Problem{std::strerror(error), IsOfLink(error)}; };
  if (!attempt->connected) {
    if (!WaitFor(attempt->socket.get(), POLLOUT, Clock::now())) return {};
    if (const int error = ErrorOf(attempt->socket); error != 0) return of(error);
    const std::string hello = Hello(addresses_[static_cast<std::size_t>(peer)].token, rank_);
    if (!SendAtOnce(attempt->socket, hello)) return of(errno);
    attempt->connected = true;
  }
  switch (ReadUpTo(kTokenDigits, attempt->socket, &attempt->answer)) {
    case Reading::kNotYet:
      return {};
    case Reading::kBroken:
      return errno == 0 ? Problem{"the connection was refused"} : of(errno);
    case Reading::kComplete:
      break;
  }
  const std::string& own_token = addresses_[static_cast<std::size_t>(rank_)].token;
  return {attempt->answer == own_token ? "" : "somebody else listens there"};
}

void TcpRendezvous::TryNextAddress(int peer, Call* call) {
  const ListenAddress& address = addresses_[static_cast<std::size_t>(peer)];
  Attempt attempt;
  attempt.socket = BeginConnecting(address.ips[call->tried], address.port);
  if (!attempt.socket) Note({std::strerror(errno), IsOfLink(errno)}, call);
  if (attempt.socket) call->attempts.push_back(std::move(attempt));
  ++call->tried;
  call->next_time = After(kSecondsBetweenAddresses);
}

void TcpRendezvous::AcceptGuests(std::vector<Arrival>* arrivals) {
  while (Descriptor socket = Accept(listener_.socket)) {
    guests_.push_back({std::move(socket), After(kStrangerSeconds), {}});
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    guest = Welcome(&*guest, arrivals) ? guests_.erase(guest) : std::next(guest);
  }
}

/// Whether the guest is to be forgotten, as a rank that has arrived or as a stranger.
bool TcpRendezvous::Welcome(Guest* guest, std::vector<Arrival>* arrivals) {
  const Reading reading = ReadUpTo(kHelloBytes, guest->socket, &guest->hello);
  if (reading == Reading::kNotYet) return Clock::now() >= guest->patience;
  if (reading == Reading::kBroken) return true;
  int peer = 0;
  std::memcpy(&peer, guest->hello.data() + kTokenDigits, sizeof(peer));
  const std::string& own_token = addresses_[static_cast<std::size_t>(rank_)].token;
  // A rank may come by several addresses at once: it stays with the one that is answered.
  if (guest->hello != Hello(own_token, peer) || peer < 0 || peer >= rank_ ||
      arrived_.count(peer) != 0) {
    return true;
  }
  if (!SendAtOnce(guest->socket, addresses_[static_cast<std::size_t>(peer)].token)) return true;
  arrived_.insert(peer);
  awaited_.erase(peer);
  arrivals->push_back({peer, std::move(guest->socket), {}});
  return true;
}

}  // namespace hvd_sparse

#include "csrc/comm/tcp_rendezvous.h"

#include <cerrno>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr double kSecondsBetweenAddresses = 1.0;
constexpr double kSecondsBetweenRounds = 0.5;  // over all addresses
constexpr double kRoundsSeconds = 60.0;        // a firewall may report for ever that a link is down

/// True if an error means that the link reaches nobody now.
bool IsOfLink(int error) {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN ||
         error == ETIMEDOUT;
}

/// True if another attempt at the same address may succeed later.
bool MayPass(const CallerHandshake& failed) {
  const bool was_closed =
      failed.error() == 0 || failed.error() == ECONNRESET || failed.error() == EPIPE;
  return IsOfLink(failed.error()) || (failed.connected() && was_closed);
}

}  // namespace

TcpRendezvous::TcpRendezvous(int rank, std::vector<ListenAddress> addresses, Listener listener,
                             bool persists)
    : rank_(rank),
      addresses_(std::move(addresses)),
      persists_(persists),
      admission_(std::move(listener), addresses_.at(static_cast<std::size_t>(rank)).key, rank, 0,
                 rank) {}

void TcpRendezvous::Request(int peer) {
  if (peer > rank_) {
    Call& call = calls_[peer];
    call.ips = addresses_[static_cast<std::size_t>(peer)].Reachable();
    if (call.ips.empty()) call.problem = "it offers loopback addresses alone, on another host";
  } else if (arrived_.count(peer) == 0) {
    awaited_.insert(peer);
  }
}

std::string TcpRendezvous::Obstacle(int peer) const {
  const auto call = calls_.find(peer);
  if (call == calls_.end() || call->second.problem.empty()) return {};
  // A peer that was reached at another address may be busy, which is no obstacle.
  for (const CallerHandshake& attempt : call->second.attempts) {
    if (attempt.connected()) return {};
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
    if (AdvanceCall(call->first, &call->second, &arrival)) {
      arrivals.push_back(std::move(arrival));
      call = calls_.erase(call);
    } else {
      ++call;
    }
  }
  for (Admission::Admitted& admitted : admission_.Advance(!awaited_.empty())) {
    arrived_.insert(admitted.rank);
    awaited_.erase(admitted.rank);
    arrivals.push_back({admitted.rank, std::move(admitted.socket), {}});
  }
  return arrivals;
}

void TcpRendezvous::AddTo(std::vector<pollfd>* polled) const {
  for (const auto& [peer, call] : calls_) {
    for (const CallerHandshake& attempt : call.attempts) {
      polled->push_back({attempt.fd(), attempt.events(), 0});
    }
  }
  admission_.AddTo(!awaited_.empty(), polled);
}

/// Returns true if the call has ended; `arrival` then holds the connection or the problem.
bool TcpRendezvous::AdvanceCall(int peer, Call* call, Arrival* arrival) {
  for (;;) {
    for (auto attempt = call->attempts.begin(); attempt != call->attempts.end();) {
      switch (attempt->Advance()) {
        case HandshakeStatus::kUnderWay:
          ++attempt;
          break;
        case HandshakeStatus::kDone:
          arrival->socket = attempt->Take();
          return true;
        case HandshakeStatus::kFailed:
          call->problem = attempt->problem();
          call->may_pass |= MayPass(*attempt);
          attempt = call->attempts.erase(attempt);
          break;
      }
    }
    if (call->tried == call->ips.size()) {
      if (!call->attempts.empty()) return false;
      if (!persists_ || !call->may_pass) break;
      if (!call->give_up) call->give_up = After(kRoundsSeconds);
      if (Clock::now() >= *call->give_up) break;
      call->tried = 0;
      call->may_pass = false;
      call->next_time = After(kSecondsBetweenRounds);
    }
    const bool failed = call->tried > 0 && call->attempts.empty();
    if (!failed && Clock::now() < call->next_time) return false;
    TryNextAddress(peer, call);
  }
  arrival->problem = CannotConnect(peer, *call);
  return true;
}

void TcpRendezvous::TryNextAddress(int peer, Call* call) {
  const ListenAddress& address = addresses_[static_cast<std::size_t>(peer)];
  call->attempts.emplace_back(BeginConnecting(call->ips[call->tried], address.port), address.key,
                              rank_, peer);
  ++call->tried;
  call->next_time = After(kSecondsBetweenAddresses);
}

}  // namespace hvd_sparse

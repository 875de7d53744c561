#include "csrc/comm/tcp_rendezvous.h"

#include <algorithm>
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
                             int connections, bool persists)
    : rank_(rank),
      connections_(connections),
      addresses_(std::move(addresses)),
      persists_(persists),
      admission_(std::move(listener), addresses_.at(static_cast<std::size_t>(rank)).key, rank, 0,
                 rank * connections) {}

void TcpRendezvous::Request(int peer) {
  for (int index = 0; index < connections_; ++index) {
    const int end = EndOf(peer, index);
    if (peer > rank_) {
      Call& call = calls_[end];
      call.ips = addresses_[static_cast<std::size_t>(peer)].Reachable();
      if (call.ips.empty()) call.problem = "it offers loopback addresses alone, on another host";
    } else if (arrived_.count(end) == 0) {
      awaited_.insert(end);
    }
  }
}

std::string TcpRendezvous::Obstacle(int peer) const {
  for (int index = 0; index < connections_; ++index) {
    const auto call = calls_.find(EndOf(peer, index));
    if (call == calls_.end() || call->second.problem.empty()) continue;
    // A peer that was reached at another address may be busy, which is no obstacle.
    const auto& attempts = call->second.attempts;
    const auto connected = [](const CallerHandshake& attempt) { return attempt.connected(); };
    if (std::any_of(attempts.begin(), attempts.end(), connected)) continue;
    return CannotConnect(peer, call->second);
  }
  return {};
}

std::string TcpRendezvous::CannotConnect(int peer, const Call& call) const {
  const ListenAddress& address = addresses_[static_cast<std::size_t>(peer)];
  return Concat("cannot connect to ", address.Place(), ": ", call.problem);
}

std::vector<TcpRendezvous::Arrival> TcpRendezvous::Advance() {
  std::vector<Arrival> arrivals;
  for (auto call = calls_.begin(); call != calls_.end();) {
    Arrival arrival = ArrivalAt(call->first);
    if (AdvanceCall(&call->second, &arrival)) {
      arrivals.push_back(std::move(arrival));
      call = calls_.erase(call);
    } else {
      ++call;
    }
  }
  for (Admission::Admitted& admitted : admission_.Advance(!awaited_.empty())) {
    arrived_.insert(admitted.rank);
    awaited_.erase(admitted.rank);
    arrivals.push_back(ArrivalAt(admitted.rank));
    arrivals.back().socket = std::move(admitted.socket);
  }
  return arrivals;
}

void TcpRendezvous::AddTo(std::vector<pollfd>* polled) const {
  for (const auto& [end, call] : calls_) {
    for (const CallerHandshake& attempt : call.attempts) {
      polled->push_back({attempt.fd(), attempt.events(), 0});
    }
  }
  admission_.AddTo(!awaited_.empty(), polled);
}

/// Returns true if the call has ended; `arrival` then holds the connection or the problem.
bool TcpRendezvous::AdvanceCall(Call* call, Arrival* arrival) {
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
    TryNextAddress(*arrival, call);
  }
  arrival->problem = CannotConnect(arrival->peer, *call);
  return true;
}

void TcpRendezvous::TryNextAddress(const Arrival& arrival, Call* call) {
  const ListenAddress& address = addresses_[static_cast<std::size_t>(arrival.peer)];
  call->attempts.emplace_back(BeginConnecting(call->ips[call->tried], address.port), address.key,
                              EndOf(rank_, arrival.connection), arrival.peer);
  ++call->tried;
  call->next_time = After(kSecondsBetweenAddresses);
}

}  // namespace hvd_sparse

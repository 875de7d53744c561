#include "csrc/comm/admission.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr double kGuestSeconds = 10.0;  // within which a guest must prove itself
constexpr double kCrowdSeconds = 0.25;  // after which it must make room for another guest

}  // namespace

Admission::Admission(Listener listener, std::string key, int rank, int first, int end)
    : listener_(std::move(listener)), key_(std::move(key)), rank_(rank), first_(first), end_(end) {
  if (first >= end) listener_.socket.Close();
}

std::vector<Admission::Admitted> Admission::Advance(bool accepts) {
  if (accepts) AcceptGuests();
  std::vector<Admitted> admitted;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const HandshakeStatus status = guest->handshake.Advance();
    if (status == HandshakeStatus::kUnderWay &&
        Clock::now() < guest->since + Seconds(kGuestSeconds)) {
      ++guest;
      continue;
    }
    const int caller = guest->handshake.caller();
    // A rank may connect through several of this host's addresses at once; only one is admitted.
    if (status == HandshakeStatus::kDone && IsExpected(caller)) {
      if (Descriptor socket = guest->handshake.Admit()) {
        admitted_.insert(caller);
        admitted.push_back({caller, std::move(socket)});
      }
    }
    guest = guests_.erase(guest);
  }
  if (admitted_.size() == static_cast<std::size_t>(std::max(0, end_ - first_))) {
    listener_.socket.Close();
    guests_.clear();
  }
  return admitted;
}

void Admission::AddTo(bool accepts, std::vector<pollfd>* polled) const {
  for (const Guest& guest : guests_) polled->push_back({guest.handshake.fd(), POLLIN, 0});
  if (accepts && listener_.socket && HasRoom()) {
    polled->push_back({listener_.socket.get(), POLLIN, 0});
  }
}

bool Admission::IsExpected(int rank) const {
  return rank >= first_ && rank < end_ && admitted_.count(rank) == 0;
}

/// The oldest guest makes room for another one, but only after a moment, so that a rank can prove
/// itself while strangers keep connecting.
bool Admission::HasRoom() const {
  return guests_.size() < kMostGuests ||
         Clock::now() >= guests_.front().since + Seconds(kCrowdSeconds);
}

void Admission::AcceptGuests() {
  for (std::size_t accepted = 0; accepted < kMostGuests && listener_.socket && HasRoom();) {
    Descriptor socket = Accept(listener_.socket);
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE) return;
      if (guests_.empty()) {
        Throw(ErrorKind::kUnavailable, "cannot accept a TCP connection: ", std::strerror(errno));
      }
      guests_.clear();
      continue;
    }
    ++accepted;
    if (guests_.size() == kMostGuests) guests_.pop_front();
    guests_.push_back({ListenerHandshake(std::move(socket), key_, rank_), Clock::now()});
  }
}

}  // namespace hvd_sparse

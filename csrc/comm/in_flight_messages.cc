#include "csrc/comm/in_flight_messages.h"

#include <algorithm>

namespace hvd_sparse {
namespace {

// After this long without progress a message counts as stuck. It is many times the interval between
// frames, and half the time after which a receiver's kernel acknowledges the last ones.
constexpr std::chrono::milliseconds kStill(20);

}  // namespace

void InFlightMessages::Add(const TcpStream* stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(stream);
  }
  left_ = -1;
}

bool InFlightMessages::Moving(int own) {
  const auto arrived = [](const TcpStream* stream) { return stream->under_way() == 0; };
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(), arrived), streams_.end());
  std::int64_t left = 0;
  for (const TcpStream* stream : streams_) {
    left += stream->peer() == own ? 0 : stream->under_way();
  }
  if (left == 0) return false;
  const auto now = Clock::now();
  if (left != left_) progress_ = now;
  left_ = left;
  if (now - progress_ < kStill) return true;
  streams_.clear();
  return false;
}

}  // namespace hvd_sparse

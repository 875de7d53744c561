/// A communicator between threads; see the header.

#include "csrc/comm/loopback_communicator.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxSpare = 4;

LoopbackWorld::LoopbackWorld(int size, double timeout_seconds)
    : mailboxes_(static_cast<std::size_t>(std::max(size, 0))), timeout_seconds_(timeout_seconds) {
  Require(size >= 1, "size must be at least 1, got ", size);
  Require(timeout_seconds > 0, "timeout_seconds must be positive, got ", timeout_seconds);
  for (Mailbox& mailbox : mailboxes_) mailbox.senders.resize(static_cast<std::size_t>(size));
}

void LoopbackWorld::Send(int from, int to, Message message) {
  Mailbox& mailbox = mailboxes_[At(to)];
  std::lock_guard<std::mutex> lock(mailbox.mutex);
  mailbox.senders[At(from)].push_back(std::move(message));
  if (mailbox.awaited == from) mailbox.arrived.notify_one();
}

LoopbackWorld::Message LoopbackWorld::Receive(int from, int to, Clock::time_point start,
                                              const std::string& what) {
  // Capped at a year, so that the sum cannot overflow.
  const std::chrono::duration<double> patience(std::min(timeout_seconds_, 3.2e7));
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(patience);

  Mailbox& mailbox = mailboxes_[At(to)];
  auto& queue = mailbox.senders[At(from)];
  std::unique_lock<std::mutex> lock(mailbox.mutex);
  mailbox.awaited = from;
  const bool done =
      mailbox.arrived.wait_until(lock, deadline, [&] { return HasFailed(to) || !queue.empty(); });
  mailbox.awaited = -1;
  if (HasFailed(to)) {
    lock.unlock();
    Check(to);
  }
  if (!done) {
    Throw(ErrorKind::kTimeout, "rank ", to, " has waited ", timeout_seconds_, " s for rank ", from,
          " in ", what);
  }
  Message message = std::move(queue.front());
  queue.pop_front();
  return message;
}

void LoopbackWorld::Fail(int rank, ErrorKind kind, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    const std::int64_t steps = mailboxes_[At(rank)].steps;
    if (failed_steps_ <= steps) return;
    failure_kind_ = KindOnPeers(kind);
    failure_ = reason;
    failed_steps_ = steps;
  }
  for (Mailbox& mailbox : mailboxes_) {
    // Without the lock, an owner that has just checked would sleep through the notification.
    std::lock_guard<std::mutex> lock(mailbox.mutex);
    mailbox.arrived.notify_all();
  }
}

void LoopbackWorld::Check(int rank) {
  if (!HasFailed(rank)) return;
  std::lock_guard<std::mutex> lock(failure_mutex_);
  Throw(failure_kind_, failure_);
}

void LoopbackWorld::Committed(int rank, std::int64_t steps) { mailboxes_[At(rank)].steps = steps; }

LoopbackCommunicator::LoopbackCommunicator(std::shared_ptr<LoopbackWorld> world, int rank)
    : world_(std::move(world)), rank_(rank) {
  const int size = world_->size();
  Require(rank >= 0 && rank < size, "rank must lie in [0, ", size, "), got ", rank);
}

void LoopbackCommunicator::Transfer(Span<const Outgoing> out, Span<Incoming> in,
                                    const std::string& what) {
  const auto start = Clock::now();
  const auto is_rank = [&](int peer) { return peer >= 0 && peer < Size(); };
  for (const Outgoing& message : out) {
    Require(is_rank(message.peer), "no rank ", message.peer, " in a world of ", Size(), ": ", what);
  }
  for (const Incoming& message : in) {
    Require(is_rank(message.peer), "no rank ", message.peer, " in a world of ", Size(), ": ", what);
  }
  Check();

  for (const Outgoing& message : out) {
    const auto* first = static_cast<const std::uint8_t*>(message.data);
    LoopbackWorld::Message copy;
    if (!spare_.empty()) {
      copy = std::move(spare_.back());
      spare_.pop_back();
    }
    copy.assign(first, first + message.bytes);
    world_->Send(rank_, message.peer, std::move(copy));
  }
  for (Incoming& message : in) {
    auto received = world_->Receive(message.peer, rank_, start, what);
    const auto bytes = static_cast<std::int64_t>(received.size());
    if (bytes > message.capacity) RefuseLength(message.peer, rank_, bytes, message.capacity, what);
    std::copy(received.begin(), received.end(), static_cast<std::uint8_t*>(message.data));
    message.bytes = bytes;
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(received));
  }
}

}  // namespace hvd_sparse

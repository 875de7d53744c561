/// A communicator whose ranks are threads of one process, for tests, simulations and benchmarks
/// without a network.
///
/// A message is copied into the mailbox of its receiver, so a sender never waits. Every rank sleeps
/// on its own condition variable and is woken only by the message that it waits for.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// State shared by the ranks of one loopback exchange. Thread-safe.
class LoopbackWorld {
 public:
  using Message = std::vector<std::uint8_t>;

  /// A rank that waits longer than `timeout_seconds` in one Transfer throws Timeout.
  explicit LoopbackWorld(int size, double timeout_seconds = 60.0);

  int size() const { return static_cast<int>(mailboxes_.size()); }

  void Send(int from, int to, Message message);

  /// Takes the oldest message from rank `from` to rank `to`; the timeout counts from `start`.
  Message Receive(int from, int to, std::chrono::steady_clock::time_point start,
                  const std::string& what);

  /// See the methods of Communicator, called for rank `rank`.
  void Fail(int rank, ErrorKind kind, const std::string& reason);
  void Check(int rank);
  void Committed(int rank, std::int64_t steps);

 private:
  /// True if a rank has ended the current step of rank `rank`, or an earlier one.
  bool HasFailed(int rank) const { return failed_steps_ <= mailboxes_[At(rank)].steps; }
  static std::size_t At(int rank) { return static_cast<std::size_t>(rank); }

  struct Mailbox {
    std::mutex mutex;
    std::condition_variable arrived;
    int awaited = -1;                          // the sender whose message the owner sleeps for
    std::vector<std::deque<Message>> senders;  // queues by rank
    std::atomic<std::int64_t> steps{0};        // steps that the owner has committed
  };

  std::vector<Mailbox> mailboxes_;  // by receiver
  const double timeout_seconds_;
  // The fewest steps after which a rank has ended the exchange.
  std::atomic<std::int64_t> failed_steps_{std::numeric_limits<std::int64_t>::max()};
  std::mutex failure_mutex_;
  ErrorKind failure_kind_ = ErrorKind::kExchangeFailed;
  std::string failure_;
};

/// One rank of a world. Transfer is called by one thread at a time, Fail and Check by any.
class LoopbackCommunicator : public Communicator {
 public:
  LoopbackCommunicator(std::shared_ptr<LoopbackWorld> world, int rank);

  int Rank() const override { return rank_; }
  int Size() const override { return world_->size(); }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override;

  void Fail(ErrorKind kind, const std::string& reason) override {
    world_->Fail(rank_, kind, reason);
  }
  void Check() override { world_->Check(rank_); }
  void Committed(std::int64_t steps) override { world_->Committed(rank_, steps); }

 private:
  std::shared_ptr<LoopbackWorld> world_;
  int rank_;
  std::vector<LoopbackWorld::Message> spare_;  // memory of received messages, reused for sending
};

}  // namespace hvd_sparse

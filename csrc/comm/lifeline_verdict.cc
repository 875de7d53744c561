/// Decides which failure a lifeline reports, and when; see the header.

#include "csrc/comm/lifeline_verdict.h"

#include <algorithm>
#include <utility>

namespace hvd_sparse {
namespace {

/// The time at which the user of this process was last told of a death, by any exchange.
std::atomic<Clock::time_point> told_of_death{Clock::time_point::min()};

}  // namespace

LifelineVerdict::Event LifelineVerdict::Note(ErrorKind kind, std::string message) {
  Event event{Clock::now(), {kind, std::move(message)}};
  any_ = true;
  return event;
}

void LifelineVerdict::Lost(int rank, const std::string& how) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_) return;
  lost_ = Note(ErrorKind::kPeerLost,
               Concat("rank ", rank, " of ", size_, " ", how, " in exchange '", name_, "'"));
}

void LifelineVerdict::Left(int rank, std::int64_t steps) {
  std::lock_guard<std::mutex> lock(mutex_);
  left_.push_back({Note(ErrorKind::kPeerLeft,
                        Concat("rank ", rank, " of ", size_, " left exchange '", name_, "'")),
                   steps});
}

bool LifelineVerdict::Failed(int rank, ErrorKind kind, const std::string& reason,
                             std::int64_t steps) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_ && failed_steps_ <= steps) return false;
  failed_ = Note(KindOnPeers(kind), Concat("rank ", rank, " ended the exchange: ", reason));
  failed_steps_ = steps;
  return true;
}

bool LifelineVerdict::CanCommit(std::int64_t steps) const {
  if (!any_.load(std::memory_order_acquire)) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return !lost_ && (!failed_ || failed_steps_ >= steps);
}

std::optional<Lifeline::Failure> LifelineVerdict::Current(double grace_seconds) const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;

  std::lock_guard<std::mutex> lock(mutex_);
  const auto now = Clock::now();
  const auto due = [&](const Event& event, double grace) {
    return std::chrono::duration<double>(now - event.time).count() >= grace;
  };
  // A rank's last messages may take long over a slow link, but not for ever: it may have died
  // since.
  const double last_messages =
      grace_seconds > 0 ? std::max(grace_seconds, kLastMessagesSeconds) : 0;
  if (EndsStep() || (failed_ && due(*failed_, last_messages)) ||
      (lost_ && due(*lost_, grace_seconds))) {
    return LostOrFailed();
  }
  for (const auto& [event, steps] : left_) {
    const bool has_sent_all = steps > this->steps();
    if (due(event, has_sent_all ? last_messages : grace_seconds)) return event.failure;
  }
  return std::nullopt;
}

std::optional<Lifeline::Failure> LifelineVerdict::AtEnd() const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  return EndsStep() || lost_ ? LostOrFailed() : std::nullopt;
}

/// True if a rank has ended this rank's current step, or an earlier one.
bool LifelineVerdict::EndsStep() const { return failed_ && failed_steps_ <= steps(); }

std::optional<Lifeline::Failure> LifelineVerdict::LostOrFailed() const {
  if (lost_ && (!failed_ || lost_->time <= failed_->time)) return lost_->failure;
  if (failed_) return failed_->failure;
  return std::nullopt;
}

void LifelineVerdict::Acknowledge() {
  if (!any_.load(std::memory_order_acquire)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  acknowledged_ = true;
  if (lost_) told_of_death.store(Clock::now(), std::memory_order_release);
}

std::optional<LifelineVerdict::Event> LifelineVerdict::UnacknowledgedDeath() const {
  if (!any_.load(std::memory_order_acquire)) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool told_elsewhere = told_of_death.load(std::memory_order_acquire) >= born_;
  return acknowledged_ || told_elsewhere ? std::nullopt : lost_;
}

}  // namespace hvd_sparse

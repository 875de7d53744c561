#include "csrc/exchange/step_times.h"

#include <algorithm>
#include <limits>

#include "csrc/base/process.h"

namespace hvd_sparse {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

StepTimes StepReading::Times() const {
  const TimedMark& first = first_ == nullptr ? *end_ : *first_;
  StepTimes times;
  times.step = begin_->SecondsUntil(*end_);
  times.forward = begin_->SecondsUntil(first);
  for (const Mark& mark : arrived_) {
    times.ready.push_back(mark == nullptr ? kUnknown : first.SecondsUntil(*mark));
  }
  return times;
}

void StepTimer::Time(bool wanted) {
  if (wanted && !timed_) begin_ = Now();
  if (!wanted) begin_ = nullptr;
  timed_ = wanted;
}

void StepTimer::Begin(StreamHandle stream) {
  stream_ = stream;
  came_.assign(came_.size(), 0.0);
  first_ = nullptr;
  arrived_.assign(arrived_.size(), nullptr);
}

void StepTimer::Arrived(std::size_t op) {
  if (came_[op] != 0) return;
  came_[op] = SteadySeconds();
  if (!timed_) return;
  arrived_[op] = Now();
  if (first_ == nullptr) first_ = arrived_[op];
}

std::vector<double> StepTimer::Came() const {
  double first = std::numeric_limits<double>::infinity();
  for (const double came : came_) {
    if (came != 0) first = std::min(first, came);
  }
  std::vector<double> since;
  for (const double came : came_) since.push_back(came == 0 ? kUnknown : came - first);
  return since;
}

double StepTimer::LastOf(std::size_t first, std::size_t end) const {
  return *std::max_element(came_.data() + first, came_.data() + end);
}

StepEnd StepTimer::End() {
  StepEnd ended{Came(), nullptr};
  if (timed_) {
    const StepReading::Mark now = Now();
    ended.reading = std::make_shared<StepReading>(begin_, first_, arrived_, now);
    begin_ = now;
  }
  return ended;
}

/// Returns a mark behind all work that the stream was given so far.
StepReading::Mark StepTimer::Now() const {
  std::unique_ptr<TimedMark> mark = kernels_.NewTimedMark();
  mark->Record(stream_);
  return mark;
}

}  // namespace hvd_sparse

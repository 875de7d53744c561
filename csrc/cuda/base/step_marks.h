/// The times at which streams passed the parts of a step, by the CPU's clock.
///
/// A device tells how long it took from one mark to another, but not when. So a step is placed as
/// long after the one before as the device says, but not before the CPU enqueued it, nor so that it
/// would end after the CPU saw its end: the two clocks never differ by more than that. No wait is
/// needed to compare them.

#pragma once

#include <algorithm>
#include <utility>

#include "csrc/base/process.h"
#include "csrc/cuda/base/stream.h"

namespace hvd_sparse::cuda {

/// The times of a step, in seconds of SteadySeconds().
struct StepTimes {
  double begin = 0, selected = 0, entered = 0, exchanged = 0, end = 0;
};

/// Marks of one bucket's steps, made on the current device. All five are recorded in each step, in
/// this order; the fourth may be recorded again. The stream may change between the second and the
/// third.
class StepMarks {
 public:
  void Begin(cudaStream_t stream) {
    given_ = SteadySeconds();
    begin_.Record(stream);
  }
  void Selected(cudaStream_t stream) { selected_.Record(stream); }
  void Entered(cudaStream_t stream) { entered_.Record(stream); }
  void Exchanged(cudaStream_t stream) { exchanged_.Record(stream); }
  void End(cudaStream_t stream) { end_->Record(stream); }

  const Event& selected() const { return selected_; }
  const Event& end() const { return *end_; }

  /// Returns the times of a step whose end was just seen.
  StepTimes Read() {
    const double whole = Event::SecondsBetween(begin_, *end_);
    const double latest = std::max(given_, SteadySeconds() - whole);
    const double told = before_at_ + (before_at_ > 0 ? Event::SecondsBetween(*before_, begin_) : 0);
    StepTimes times;
    times.begin = std::clamp(told, given_, latest);
    times.selected = times.begin + Event::SecondsBetween(begin_, selected_);
    times.entered = times.begin + Event::SecondsBetween(begin_, entered_);
    times.exchanged = times.begin + Event::SecondsBetween(begin_, exchanged_);
    times.end = times.begin + whole;
    std::swap(before_, end_);
    before_at_ = times.end;
    return times;
  }

 private:
  Event begin_{Timing::kKept}, selected_{Timing::kKept};
  Event entered_{Timing::kKept}, exchanged_{Timing::kKept};
  Event one_{Timing::kKept}, other_{Timing::kKept};
  Event *end_ = &one_, *before_ = &other_;  // of this step, and of the one before
  double given_ = 0;
  double before_at_ = 0;  // 0: there was no step before
};

}  // namespace hvd_sparse::cuda

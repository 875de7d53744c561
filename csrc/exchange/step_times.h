/// The times of a step's events, from which a plan and the order of the buckets are made.
///
/// The order is that seen by the CPU. Times are those of the device that computes the gradients,
/// which lags behind: they are read when it has reached the end of the step.

#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// The times of one step, in seconds.
struct StepTimes {
  double step = 0;            ///< from the end of the step before to this one's
  double forward = 0;         ///< from the end of the step before to the first op
  std::vector<double> ready;  ///< of each op, counted from the first; NaN: not handed over
};

/// The marks of a step that has ended.
class StepReading {
 public:
  using Mark = std::shared_ptr<const TimedMark>;

  /// `first` and `arrived`: the marks of the first op and of each op; null if it never came.
  StepReading(Mark begin, Mark first, std::vector<Mark> arrived, Mark end)
      : begin_(std::move(begin)),
        first_(std::move(first)),
        arrived_(std::move(arrived)),
        end_(std::move(end)) {}

  /// True if the device has passed all marks.
  bool Passed() const { return begin_->Passed() && end_->Passed(); }

  /// Returns the times between the marks; call it once they have passed.
  StepTimes Times() const;

 private:
  const Mark begin_, first_;
  const std::vector<Mark> arrived_;
  const Mark end_;
};

/// The observations of a step, known when it ends.
struct StepEnd {
  /// When each op was handed over, in seconds of the CPU's clock from the first; NaN: it was
  /// not.
  std::vector<double> came;

  std::shared_ptr<StepReading> reading;  ///< null unless the step was timed
};

class StepTimer {
 public:
  StepTimer(std::size_t ops, const Kernels& kernels)
      : kernels_(kernels), came_(ops), arrived_(ops) {}

  /// Sets whether steps are timed from the next one on; called between two steps of one stream.
  void Time(bool wanted);

  /// Begins a step, which comes from `stream`.
  void Begin(StreamHandle stream);

  /// Notes that an op was handed over; only the first time in a step counts.
  void Arrived(std::size_t op);

  /// Returns when each op was handed over, in seconds from the first; NaN: it was not.
  std::vector<double> Came() const;

  /// Returns when the last of the ops [first, end) was handed over, in seconds of the CPU's clock.
  double LastOf(std::size_t first, std::size_t end) const;

  /// Ends the step and returns its observations.
  StepEnd End();

 private:
  StepReading::Mark Now() const;

  const Kernels& kernels_;
  StreamHandle stream_ = 0;
  std::vector<double> came_;  // 0: not yet
  bool timed_ = false;
  StepReading::Mark begin_, first_;         // of a step that is timed
  std::vector<StepReading::Mark> arrived_;  // likewise
};

}  // namespace hvd_sparse

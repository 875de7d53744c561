/// When things happen in a step: what a plan, and the order of the buckets, are made from.
///
/// Order is what the CPU sees. Times are those of the device that computes the gradients, which is
/// behind: they are read when it has come to the end of the step.

#ifndef HVD_SPARSE_EXCHANGE_STEP_TIMES_H_
#define HVD_SPARSE_EXCHANGE_STEP_TIMES_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// When things happened in a step, in seconds.
struct StepTimes {
  double step = 0;            ///< from the end of the step before to this one's
  double forward = 0;         ///< from the end of the step before to the first piece
  std::vector<double> ready;  ///< of each piece, counted from the first; NaN: it did not come
};

/// The marks of a step that has ended.
class StepReading {
 public:
  using Mark = std::shared_ptr<const TimedMark>;

  /// `first` and `arrived`: of the piece that came first, and of each; null where none came.
  StepReading(Mark begin, Mark first, std::vector<Mark> arrived, Mark end)
      : begin_(std::move(begin)),
        first_(std::move(first)),
        arrived_(std::move(arrived)),
        end_(std::move(end)) {}

  /// Whether the device has passed them all.
  bool Passed() const { return begin_->Passed() && end_->Passed(); }

  /// Then, what they say.
  StepTimes Times() const;

 private:
  const Mark begin_, first_;
  const std::vector<Mark> arrived_;
  const Mark end_;
};

/// What is known when a step ends.
struct StepEnd {
  /// When each piece was handed over, in seconds of the CPU from the first; NaN: it was not.
  std::vector<double> came;

  std::shared_ptr<StepReading> reading;  ///< null unless the step was timed
};

class StepTimer {
 public:
  StepTimer(std::size_t pieces, const Kernels& kernels)
      : kernels_(kernels), came_(pieces), arrived_(pieces) {}

  /// Whether steps are timed from the next one on; between two steps of one stream.
  void Time(bool wanted);

  /// A step that comes from a stream.
  void Begin(StreamHandle stream);

  /// A piece has come; its first arrival in a step counts.
  void Arrived(std::size_t piece);

  /// The step has ended.
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

#endif  // HVD_SPARSE_EXCHANGE_STEP_TIMES_H_

/// When things happen in a step: what a plan, and the order of the buckets, are made from.

#ifndef HVD_SPARSE_EXCHANGE_STEP_TIMES_H_
#define HVD_SPARSE_EXCHANGE_STEP_TIMES_H_

#include <cstddef>
#include <vector>

namespace hvd_sparse {

/// When things happened in a step, in seconds; NaN where that is not known.
struct StepTimes {
  double step = 0;            ///< from the end of the step before to this one's
  double forward = 0;         ///< from the end of the step before to the first piece
  std::vector<double> ready;  ///< of each piece, counted from the first
};

class StepTimer {
 public:
  explicit StepTimer(std::size_t pieces) : arrived_(pieces, 0.0) {}

  void Begin() { arrived_.assign(arrived_.size(), 0.0); }

  /// A piece has come; its first arrival in a step counts.
  void Arrived(std::size_t piece);

  /// The step has ended.
  StepTimes End();

 private:
  std::vector<double> arrived_;  // 0: not yet
  double last_end_ = 0;          // 0: no step has ended
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_TIMES_H_

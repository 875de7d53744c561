/// Samples of a step that is measured: copies of each bucket's values before selection and after
/// the step, in CPU memory, to be compared over the ranks.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/collectives/bucket_spec.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// The sample of one bucket.
struct StepSample {
  std::size_t bucket = 0;          ///< place among the driver's buckets
  std::int64_t step = 0;           ///< steps before this one
  std::vector<float> accumulated;  ///< residual and gradients, before selection
  std::vector<float> left;         ///< the residual, after the step
  std::vector<float> applied;      ///< the sum over the ranks that the gradients hold
};

class StepSampler {
 public:
  /// `every`: steps from one measured step to the next; 0: none is. `kernels`: those of the
  /// gradients' device; calls wait until it has done the work that the stream of a launch was
  /// given.
  StepSampler(std::int64_t every, const Kernels& kernels) : every_(every), kernels_(kernels) {}

  /// Begins a step, after `step` earlier ones.
  void Begin(std::int64_t step);

  /// Called before a launch of a bucket is started. Keeps the values that it will accumulate, if
  /// the step is measured.
  void Starts(std::size_t bucket, const Launch& launch);

  /// True if nothing was kept of the step.
  bool empty() const { return samples_.empty(); }

  /// Called once the step is committed: returns its samples, completed by the residuals and the
  /// sums.
  const std::vector<StepSample>& Complete();

 private:
  void Follow(const Launch& launch) const;
  void Read(const Feedback& feedback, std::vector<float>* to) const;
  std::vector<float> AccumulatedOf(const Launch& launch) const;

  const std::int64_t every_;
  const Kernels& kernels_;
  std::int64_t step_ = 0;
  std::vector<StepSample> samples_;
  std::vector<Launch> launches_;  // one per sample
};

}  // namespace hvd_sparse

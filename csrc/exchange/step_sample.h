/// What selection leaves behind in a step in which that is measured: copies of each bucket, in the
/// memory of the CPU, for somebody who compares them over the ranks.

#ifndef HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_
#define HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/exchange/bucket_spec.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// A bucket in such a step.
struct StepSample {
  std::size_t bucket = 0;          ///< place among the driver's buckets
  std::int64_t step = 0;           ///< steps before this one
  std::vector<float> accumulated;  ///< residual and gradients, before selection
  std::vector<float> left;         ///< the residual, after the step
  std::vector<float> applied;      ///< the sum over the ranks that the gradients hold
};

class StepSampler {
 public:
  /// `every`: steps from one that is measured to the next; 0: none is. `kernels` of where gradients
  /// lie; on a device, calls wait until it has done what the stream of a launch was given.
  StepSampler(std::int64_t every, const Kernels& kernels) : every_(every), kernels_(kernels) {}

  /// Another step, with so many before it.
  void Begin(std::int64_t step);

  /// A launch of a bucket is about to be started. Keeps what it is going to accumulate, if the step
  /// is measured.
  void Starts(std::size_t bucket, const Launch& launch);

  /// Whether nothing was kept of the step.
  bool empty() const { return samples_.empty(); }

  /// The step counts: all that was kept of it, with what is left and what was applied.
  const std::vector<StepSample>& Complete();

 private:
  void Follow(const Launch& launch) const;
  void Read(const Feedback& feedback, std::vector<float>* to) const;
  std::vector<float> AccumulatedOf(const Launch& launch) const;

  const std::int64_t every_;
  const Kernels& kernels_;
  std::int64_t step_ = 0;
  std::vector<StepSample> samples_;
  std::vector<Launch> launches_;  // of each
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_

/// A bucket in a step in which it is measured what selection leaves behind: copies, for somebody
/// who compares them over the ranks.

#ifndef HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_
#define HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/exchange/bucket_spec.h"

namespace hvd_sparse {

struct StepSample {
  std::size_t bucket = 0;          ///< place among the driver's buckets
  std::int64_t step = 0;           ///< steps before this one
  std::vector<float> accumulated;  ///< residual and gradients, before selection
  std::vector<float> left;         ///< the residual, after the step
  std::vector<float> applied;      ///< the sum over the ranks that the gradients hold
};

/// What a launch is going to accumulate; before it is started.
std::vector<float> AccumulatedOf(const Launch& launch);

/// Takes what is left and what was applied, of the same launch in a step that counts.
void Complete(const Launch& launch, StepSample* sample);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_SAMPLE_H_

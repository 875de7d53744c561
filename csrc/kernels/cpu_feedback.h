/// Error feedback, and taking of entries, on the CPU; contracts in kernels.h and candidates.h, but
/// for the place of what is taken: indices count from `offset`.

#ifndef HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_
#define HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_

#include <cstdint>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

/// The destination of taken entries: free places of a block that is being written.
struct Room {
  Index* indices;
  float* values;
  std::int64_t size;
};

std::int64_t Accumulate(const Feedback& feedback);

/// Take with a gradient, and without one.
Tally AccumulateAndTake(const Feedback& feedback, float threshold, Index offset, Room room);
Tally TakeAbove(Span<float> residual, float threshold, Index offset, Room room);

/// Returns the number of entries taken.
std::int64_t TakeAt(Span<float> residual, Span<const Index> positions, Index offset, Room room);

void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
            std::vector<float>* sample);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_

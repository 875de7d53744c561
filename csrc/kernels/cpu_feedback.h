/// Error feedback, and taking of entries, on the CPU; contracts in kernels.h.

#ifndef HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_
#define HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_

#include <algorithm>
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

/// Returns the places of `out` from `filled` up to `limit`.
inline Room RoomOf(SparseBlock* out, std::int64_t filled, std::int64_t limit) {
  const std::int64_t end = std::min(limit, out->capacity());
  return {out->indices() + filled, out->values() + filled, std::max<std::int64_t>(end - filled, 0)};
}

std::int64_t Accumulate(const Feedback& feedback);

Tally AccumulateAndTake(const Feedback& feedback, float threshold, Index offset, Room room);

Tally TakeAbove(Span<float> residual, float threshold, Index offset, Room room);

void TakeAt(Span<float> residual, Span<const Index> positions, Index offset, Room room);

void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
            std::vector<float>* sample);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_FEEDBACK_H_

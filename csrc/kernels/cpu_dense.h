/// Passes over dense arrays on the CPU; contracts in kernels.h, and below where they differ.

#ifndef HVD_SPARSE_KERNELS_CPU_DENSE_H_
#define HVD_SPARSE_KERNELS_CPU_DENSE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

/// Where selected entries go: the free places of a block that is being written.
struct Room {
  Index* indices;
  float* values;
  std::int64_t size;
};

/// The places of `out` from `filled` on, up to `limit`.
inline Room RoomOf(SparseBlock* out, std::int64_t filled, std::int64_t limit) {
  return {out->indices() + filled, out->values() + filled, limit > filled ? limit - filled : 0};
}

std::int64_t Accumulate(GradView grad, float decay, float scale, Span<float> residual);

Moments ComputeMoments(Span<const float> dense);

std::int64_t CountAbove(const float* dense, std::int64_t size, float threshold);

/// Returns how many lie above; writes as many of them as there is room for.
std::int64_t SelectAbove(const float* dense, std::int64_t size, float threshold, Index offset,
                         Room room);

void Sample(Span<const float> dense, std::int64_t count, std::vector<float>* sample);

TopKCut FindTopK(Span<const float> dense, std::int64_t k);

/// Returns how many entries were written.
std::int64_t SelectCut(const float* dense, std::int64_t size, TopKCut cut, Index offset, Room room);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_DENSE_H_

/// Compaction: moving the few entries that matter together.
///
/// Vectorised by hand, since no compiler does it: AVX2 moves the kept ones of 8 entries together
/// with a table of permutations, AVX-512 those of 16 in one instruction. (It compresses in a
/// register: right to memory is microcode on some processors.)

#ifndef HVD_SPARSE_KERNELS_COMPACT_H_
#define HVD_SPARSE_KERNELS_COMPACT_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

/// Entries that TakeChunk looks at. So few that the processor fetches the next chunk from memory
/// while it compacts this one; that hides the compaction behind the memory pass.
constexpr std::int64_t kChunk = 512;

/// Moves the entries with |dense[i]| > threshold to the front of `indices` (as offset + i) and
/// `values`, and makes them zero in `dense`; returns how many. size <= kChunk; both have room for
/// kChunk entries, and what lies behind the entries moved is overwritten.
std::int64_t TakeChunk(float* dense, std::int64_t size, float threshold, Index offset,
                       Index* indices, float* values);

/// residual += grad, and TakeChunk of the result, in one loop. Returns -1, having changed nothing,
/// if a sum is not finite or this processor has no instructions for it.
std::int64_t AddAndTakeChunk(const float* grad, float* residual, std::int64_t size, float threshold,
                             Index offset, Index* indices, float* values);

/// How far a compaction has come.
struct Compaction {
  std::int64_t read = 0;     ///< entries looked at
  std::int64_t written = 0;  ///< entries kept, at the front
  std::int64_t ties = 0;     ///< entries of just that magnitude that may still be kept
};

/// Moves the entries with |value| > cut, and the first `ties` of |value| == cut, to the front;
/// `cut` and magnitudes compare as bits. Looks at as many whole vectors as there are; the caller
/// does the rest. Where this processor has no such instructions, that is all of it.
void CompactVectors(Index* indices, float* values, std::int64_t count, std::uint32_t cut,
                    Compaction* at);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_COMPACT_H_

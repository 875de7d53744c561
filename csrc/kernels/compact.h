/// Compaction of a block in place: the pass that keeps the entries above a magnitude.
///
/// Vectorised by hand, since no compiler does it: AVX-512 moves the kept ones of 16 entries
/// together in a register. (Compressing right to memory takes ten times as long on some
/// processors.)

#ifndef HVD_SPARSE_KERNELS_COMPACT_H_
#define HVD_SPARSE_KERNELS_COMPACT_H_

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

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

/// Compaction: moving the few selected entries of an array together.
///
/// Vectorised by hand, since no compiler does it: AVX2 compacts 8 entries with a table of
/// permutations, AVX-512 compacts 16 in one instruction. (It compresses into a register:
/// compressing directly to memory is microcode on some processors.)

#pragma once

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

/// The most entries that TakeChunk takes from. They are so few that the processor prefetches the
/// next chunk while it compacts this one, which hides the compaction behind the memory pass.
constexpr std::int64_t kChunk = 512;

/// Moves the entries with |dense[i]| > threshold to the front of `indices` (as offset + i) and
/// `values`, and zeroes them in `dense`; returns their number. size <= kChunk; `indices` and
/// `values` must have room for kChunk entries, and places behind the moved entries are overwritten.
std::int64_t TakeChunk(float* dense, std::int64_t size, float threshold, Index offset,
                       Index* indices, float* values);

/// A velocity that is updated before it is added to the residual; see Feedback.
struct Momentum {
  float* velocity;
  float momentum, scale;  ///< factors of the velocity and of the gradient
};

/// Adds `grad`, or a velocity that it updates, to `residual` and applies TakeChunk to the result,
/// in one loop. `momentum` is null without a velocity. Returns -1, having changed nothing, if a sum
/// is not finite or this processor lacks AVX2.
std::int64_t AddAndTakeChunk(const float* grad, const Momentum* momentum, float* residual,
                             std::int64_t size, float threshold, Index offset, Index* indices,
                             float* values);

/// Progress of a compaction.
struct Compaction {
  std::int64_t read = 0;     ///< entries examined
  std::int64_t written = 0;  ///< entries kept, at the front
  std::int64_t ties = 0;     ///< entries of magnitude `cut` that may still be kept
};

/// Moves the entries with |value| > cut, and the first `ties` with |value| == cut, to the front;
/// `cut` and magnitudes are compared as bits. Handles whole vectors only, and nothing on a
/// processor without AVX-512; the caller does the rest.
void CompactVectors(Index* indices, float* values, std::int64_t count, std::uint32_t cut,
                    Compaction* at);

}  // namespace hvd_sparse::cpu

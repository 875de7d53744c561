/// Running counts over the tiles of a pass, without a second pass: decoupled look-back.
///
/// A block publishes the counts of its tile as soon as it knows them, then adds up those of the
/// tiles before it, walking back 32 tiles at a time until one of them has published the counts of
/// all tiles up to its end; then it publishes the same for its own. Tiles are numbered in the order
/// in which blocks begin to run, so those that a block waits for are running or done: no block
/// waits for ever. Counts are integers, so the result does not depend on the order of adding.
///
/// Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA
/// technical report NVR-2016-002.

#pragma once

#include <cstdint>

#include "csrc/cuda/base/entries.cuh"

namespace hvd_sparse::cuda {

/// Counts of entries above a threshold and of entries equal to a cut, in a bucket: either is below
/// 2^31.
struct Counts {
  unsigned above, ties;
};

__device__ inline Counts operator+(Counts a, Counts b) {
  return {a.above + b.above, a.ties + b.ties};
}

/// The status and counts that a tile has published, in a single word that is written at once, so
/// that readers need no fence. Zero at first.
using TileWord = unsigned long long;

enum class TileStatus : unsigned {
  kNothing = 0,
  kOwn = 1,      ///< the counts of the tile alone
  kUpToEnd = 2,  ///< the counts of all tiles up to its end
};

__device__ inline TileWord Pack(TileStatus status, Counts counts) {
  return static_cast<TileWord>(status) << 62 | static_cast<TileWord>(counts.above) << 31 |
         static_cast<TileWord>(counts.ties);
}
__device__ inline TileStatus StatusOf(TileWord word) {
  return static_cast<TileStatus>(static_cast<unsigned>(word >> 62));
}
__device__ inline Counts CountsOf(TileWord word) {
  return {static_cast<unsigned>(word >> 31) & 0x7fffffffu,
          static_cast<unsigned>(word) & 0x7fffffffu};
}

// Volatile accesses are neither kept in registers nor served from the first-level cache.
__device__ inline TileWord Read(const TileWord* word) {
  return *static_cast<const volatile TileWord*>(word);
}
__device__ inline void Publish(TileWord* word, TileStatus status, Counts counts) {
  *static_cast<volatile TileWord*>(word) = Pack(status, counts);
}

/// Returns the counts of all tiles before `tile`, whose own counts are `own`. Called by all lanes
/// of one warp of the tile's block, with the same arguments.
__device__ inline Counts LookBack(TileWord* words, std::int64_t tile, Counts own) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (tile > 0 && lane == 0) Publish(words + tile, TileStatus::kOwn, own);
  Counts before = {0, 0};
  for (std::int64_t end = tile; end > 0; end -= kWarp) {
    const std::int64_t other = end - 1 - lane;  // the first lane looks at the nearest tile
    // Lanes that look before the first tile see zero counts, complete.
    TileWord word = Pack(TileStatus::kUpToEnd, {0, 0});
    do {
      if (other >= 0) word = Read(words + other);
    } while (__any_sync(kAllLanes, StatusOf(word) == TileStatus::kNothing));

    const unsigned complete = __ballot_sync(kAllLanes, StatusOf(word) == TileStatus::kUpToEnd);
    const int nearest = complete == 0 ? kWarp - 1 : __ffs(static_cast<int>(complete)) - 1;
    const Counts counts = lane <= nearest ? CountsOf(word) : Counts{0, 0};
    before = before + Counts{WarpSum(counts.above), WarpSum(counts.ties)};
    if (complete != 0) break;
  }
  if (lane == 0) Publish(words + tile, TileStatus::kUpToEnd, before + own);
  return before;
}

}  // namespace hvd_sparse::cuda

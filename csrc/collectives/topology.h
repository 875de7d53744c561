/// Pure arithmetic on ranks.

#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// Returns the entries that one of `owners` owns in a bucket of `numel`.
inline Range ShardOf(std::int64_t numel, int owner, int owners) {
  return {numel * owner / owners, numel * (owner + 1) / owners};
}

/// Returns the most entries that one of `owners` owns.
inline std::int64_t LongestShard(std::int64_t numel, int owners) {
  return (numel + owners - 1) / owners;
}

/// A hypercube for any number of ranks: the largest power of two of them is the core; each rank
/// beyond is the guest of one core rank, its host, which exchanges on its behalf.
struct FoldedCube {
  int rank;
  int size;

  int Core() const {
    int core = 1;
    while (core <= size / 2) core *= 2;
    return core;
  }
  bool IsGuest() const { return rank >= Core(); }
  int Host() const { return rank - Core(); }  ///< of a guest
  bool HasGuest() const { return rank + Core() < size; }
  int Guest() const { return rank + Core(); }  ///< of a core rank that has one
  int Partner(int distance) const { return rank ^ distance; }
  /// True on the lowest of the ranks that hold the same block before the round of `distance`.
  bool IsLowest(int distance) const { return rank % distance == 0; }
};

/// Bruck's allgather: before the round of `distance` a rank holds the blocks of ranks
/// rank .. rank + distance - 1, counted around the ring.
struct BruckRing {
  int rank;
  int size;

  int To(int distance) const { return (rank - distance + size) % size; }
  int From(int distance) const { return (rank + distance) % size; }
  int BlocksInRound(int distance) const { return std::min(distance, size - distance); }
  int OwnerOf(int position) const { return (rank + position) % size; }
};

}  // namespace hvd_sparse

/// Taking entries in two kernels, so that no block of threads waits for another one while gradients
/// and residuals stream past.
///
///     1. each warp reserves places in a pile, notes them, and moves the entries it takes there
///     2. the parts of the pile are put in order: sums over threads, over blocks (look_back.cuh)
///
/// Few entries are taken, so the second kernel moves next to nothing. If more are taken than there
/// is room for, the pile holds some of them, and the others stay in the residual.

#pragma once

#include "csrc/cuda/kernels/take_tile.cuh"

namespace hvd_sparse::cuda {

/// A warp's part of a pile.
struct PilePart {
  unsigned begin, count;
};

/// Entries in no order, on the device.
struct Pile {
  Index* indices;
  float* values;
  unsigned room;
  unsigned* count;  ///< of the entries for which a place was asked; zero at first
};

/// Moves the entries of this warp's part of a tile that exceed `threshold` to the pile, and writes
/// the residual where it has changed. `first` is the tile's place in its bucket. Called by all
/// lanes of a warp.
__device__ inline void TakeToPile(float threshold, bool has_changed, const TileEntries& tile,
                                  Index first, const Pile& pile, PilePart* part) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned above = 0;  // bit 4 v + j: entry j of vector v
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = TileEntries::BeginOf(v), left = tile.size - i;
    if (left <= 0) continue;
    Four<float> stays = tile.of[v];
    unsigned own = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool is_taken = j < left && fabsf(tile.of[v].at[j]) > threshold;
      own |= static_cast<unsigned>(is_taken) << j;
      if (is_taken) stays.at[j] = 0;
    }
    above |= own << (4 * v);
    if (has_changed || own != 0) StoreFour(stays, left, tile.is_aligned, tile.residual + i);
  }

  PilePart noted = {0, 0};
  if (__any_sync(kAllLanes, above != 0)) {
    const Spread in_warp = SpreadOver(above, lane);
    noted.count = SumOfBytes(in_warp.all);
    if (lane == 0) noted.begin = atomicAdd(pile.count, noted.count);
    noted.begin = __shfl_sync(kAllLanes, noted.begin, 0);
    unsigned of_vector = noted.begin;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      unsigned place = of_vector + ByteOf(in_warp.before, v);
      of_vector += ByteOf(in_warp.all, v);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if ((above >> (4 * v + j) & 1u) == 0) continue;
        const int i = TileEntries::BeginOf(v) + j;
        if (place < pile.room) {
          pile.indices[place] = first + static_cast<Index>(i);
          pile.values[place] = tile.of[v].at[j];
        } else {
          tile.residual[i] = tile.of[v].at[j];
        }
        ++place;
      }
    }
  }
  if (lane == 0) *part = noted;
}

// A block of threads puts a group's parts in order, one for each thread.
static_assert(kGroupTiles * kTakeWarps == kTakeThreads);

/// Shared memory of a block of threads.
struct OrderShared {
  unsigned number, of_warp[kTakeWarps], before;
  unsigned ends[kTakeThreads];     ///< of the parts, among the group's entries
  unsigned sources[kTakeThreads];  ///< added to the number of an entry: its place in the pile
};

/// Copies a group's entries, which lie in `count` parts, to their places in order. `words` are
/// those of the array of which this is group `number`. If there is not enough room, copies the pile
/// as it is. Called by all threads of a block.
__device__ inline void PutInOrder(const Pile& pile, const PilePart* parts, unsigned count,
                                  TileWord* words, std::int64_t number, Index* indices,
                                  float* values, OrderShared* shared) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const PilePart own = threadIdx.x < count ? parts[threadIdx.x] : PilePart{0, 0};
  const bool is_overfull = *pile.count > pile.room;
  unsigned end = WarpPrefixSum(own.count, lane);
  if (lane == kWarp - 1) shared->of_warp[warp] = end;
  __syncthreads();
  unsigned all = 0;
  for (int w = 0; w < kTakeWarps; ++w) {
    if (w < warp) end += shared->of_warp[w];
    all += shared->of_warp[w];
  }
  shared->ends[thread] = end;
  shared->sources[thread] = own.begin - (end - own.count);
  if (warp == 0 && !is_overfull) {
    const Counts before = LookBack(words, number, {all, 0});
    if (lane == 0) shared->before = before.above;
  }
  __syncthreads();
  for (unsigned n = threadIdx.x; n < all; n += kTakeThreads) {
    unsigned low = 0, high = kTakeThreads - 1;  // seeks the first end > n
    while (low < high) {
      const unsigned middle = (low + high) / 2;
      if (shared->ends[middle] > n) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    const unsigned source = shared->sources[low] + n;
    if (source >= pile.room) continue;
    const unsigned place = is_overfull ? source : shared->before + n;
    indices[place] = pile.indices[source];
    values[place] = pile.values[source];
  }
}

}  // namespace hvd_sparse::cuda

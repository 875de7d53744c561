/// Taking entries from a tile of a residual, which a block of threads holds in registers meanwhile.
///
///     load and add; find the entries to take        each lane for itself
///     find their places in the result               sums over lanes, over warps, over tiles
///     write them; write the residual without them   each lane for itself
///
/// A warp reads 4 times 128 neighbouring entries, so order within it is by vector, lane, entry. The
/// counts of the 4 vectors, at most 128 each, are summed over the lanes at once, as the bytes of a
/// word.

#pragma once

#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {

constexpr int kTakeThreads = 256, kTakeWarps = kTakeThreads / kWarp, kVectors = 4;
constexpr int kTakenByWarp = kVectors * kWarp * 4;

/// Vectors that are loaded before any of them is used; four would take the registers of one block
/// in five.
constexpr int kInFlight = 2;
static_assert(kVectors % kInFlight == 0);
static_assert(kTakeWarps * kTakenByWarp == kTileEntries);

// ---- Which entries are taken --------------------------------------------------------------------

enum class Kind { kStays, kAbove, kTie };

/// Takes |x| > threshold, but never NaN.
struct AboveThreshold {
  static constexpr bool kHasTies = false;

  float threshold;

  __device__ Kind Of(float x) const { return fabsf(x) > threshold ? Kind::kAbove : Kind::kStays; }
  __device__ unsigned Kept(unsigned /*ties*/) const { return 0; }
};

/// Takes the entries of an exact top-k, but never zeros.
struct UpToCut {
  static constexpr bool kHasTies = true;

  std::uint32_t last;  ///< the bits of the smallest magnitude kept
  unsigned ties;       ///< how many entries of that magnitude are kept

  __device__ Kind Of(float x) const {
    const std::uint32_t magnitude = Magnitude(x);
    if (magnitude == 0 || magnitude < last) return Kind::kStays;
    return magnitude == last ? Kind::kTie : Kind::kAbove;
  }
  /// Returns how many of the first `first` ties are kept.
  __device__ unsigned Kept(unsigned first) const { return min(first, ties); }
};

// ---- Counting within a tile ---------------------------------------------------------------------

/// Returns byte `vector` of a word.
__device__ inline unsigned ByteOf(unsigned word, int vector) {
  return word >> (8 * vector) & 0xffu;
}

__device__ inline unsigned SumOfBytes(unsigned word) {
  return ByteOf(word, 0) + ByteOf(word, 1) + ByteOf(word, 2) + ByteOf(word, 3);
}

/// Returns, as bytes, how many of 16 entries, a bit each, are set in each vector of 4.
__device__ inline unsigned CountVectors(unsigned bits) {
  unsigned counts = 0;
  for (int v = 0; v < kVectors; ++v) counts |= __popc(bits >> (4 * v) & 0xfu) << (8 * v);
  return counts;
}

/// The counts of one kind of entries in a warp.
struct Spread {
  unsigned before;  ///< by vector, as bytes: in the lanes before this one
  unsigned all;     ///< by vector, as bytes: in all lanes
};

__device__ inline Spread SpreadOver(unsigned bits, int lane) {
  const unsigned own = CountVectors(bits);
  const unsigned up_to_own = WarpPrefixSum(own, lane);
  // No byte borrows: none is smaller than its own part.
  return {up_to_own - own, __shfl_sync(kAllLanes, up_to_own, kWarp - 1)};
}

// ---- A tile -------------------------------------------------------------------------------------

/// A tile of a residual, and this thread's entries of it.
struct TileEntries {
  float* residual;  ///< at the tile's first entry
  int size;         ///< entries in the tile
  bool is_aligned;
  Four<float> of[kVectors];

  __device__ TileEntries(float* residual, std::int64_t size)
      : residual(residual), size(static_cast<int>(size)), is_aligned(IsAligned(residual)) {}

  /// Returns where a vector of this thread begins in the tile.
  __device__ static int BeginOf(int vector) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    return warp * kTakenByWarp + vector * kWarp * 4 + lane * 4;
  }

  /// Loads the residual, and adds what `source` has from place `first` on. Adds the number of
  /// entries that are not finite to `not_finite`.
  template <typename Source>
  __device__ void Load(const Source& source, std::int64_t first, unsigned* not_finite) {
    unsigned bad = 0;
#pragma unroll
    for (int v = 0; v < kVectors; v += kInFlight) {
      typename Source::Inflow inflow[kInFlight];
#pragma unroll
      for (int n = 0; n < kInFlight; ++n) {
        const int i = BeginOf(v + n), left = size - i;
        of[v + n] = LoadFour(residual + i, left, is_aligned);
        inflow[n] = source.LoadInflow(first + i, left);
      }
#pragma unroll
      for (int n = 0; n < kInFlight; ++n) {
        const int i = BeginOf(v + n), left = size - i;
        of[v + n] = source.JoinFour(first + i, left, of[v + n], inflow[n], &bad);
      }
    }
    if (!Source::kChanges) return;
    bad = WarpSum(bad);
    if (threadIdx.x % kWarp == 0 && bad > 0) atomicAdd(not_finite, bad);
  }
};

/// Shared memory of a block of threads.
struct TakeShared {
  unsigned number;
  Counts of_warp[kTakeWarps], before;
};

/// Returns a number that no other block has, counted in the order in which blocks ask. Called by
/// all threads of a block.
__device__ inline unsigned NextNumber(unsigned* begun, unsigned* shared) {
  if (threadIdx.x == 0) *shared = atomicAdd(begun, 1u);
  __syncthreads();
  const unsigned number = *shared;
  __syncthreads();  // all have read it before the next call writes
  return number;
}

/// Takes the entries that `rule` says, and writes the residual without them. `words` are those of
/// the array of which this is tile `number`. Returns the counts of that array's entries, with or
/// without room, up to the tile's end. Called by all threads of a block.
template <typename Rule>
__device__ Counts TakeTile(const Rule& rule, TileEntries* tile, const Taken& taken, TileWord* words,
                           std::int64_t number, TakeShared* shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  unsigned above = 0, ties = 0;  // bit 4 v + j: entry j of vector v
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int left = tile->size - TileEntries::BeginOf(v);
    if (left <= 0) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Kind kind = j < left ? rule.Of(tile->of[v].at[j]) : Kind::kStays;
      above |= static_cast<unsigned>(kind == Kind::kAbove) << (4 * v + j);
      ties |= static_cast<unsigned>(kind == Kind::kTie) << (4 * v + j);
    }
  }

  const Spread above_in_warp = SpreadOver(above, lane);
  const Spread ties_in_warp = Rule::kHasTies ? SpreadOver(ties, lane) : Spread{0, 0};
  if (lane == 0) {
    shared->of_warp[warp] = {SumOfBytes(above_in_warp.all), SumOfBytes(ties_in_warp.all)};
  }
  __syncthreads();
  Counts own = {0, 0};
  for (const Counts& counts : shared->of_warp) own = own + counts;
  if (warp == 0) {
    const Counts before = LookBack(words, number, own);
    if (lane == 0) shared->before = before;
  }
  __syncthreads();

  Counts before = shared->before;
  const Counts up_to_end = before + own;
  for (int w = 0; w < warp; ++w) before = before + shared->of_warp[w];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = TileEntries::BeginOf(v), left = tile->size - i;
    if (left <= 0) continue;
    Counts at = before + Counts{ByteOf(above_in_warp.before, v), ByteOf(ties_in_warp.before, v)};
    before = before + Counts{ByteOf(above_in_warp.all, v), ByteOf(ties_in_warp.all, v)};
    bool has_taken = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool is_above = (above >> (4 * v + j) & 1u) != 0;
      const bool is_tie = (ties >> (4 * v + j) & 1u) != 0;
      const unsigned kept = rule.Kept(at.ties);  // ties beyond the last one kept take no place
      const bool is_kept_tie = is_tie && rule.Kept(at.ties + 1) > kept;
      const std::int64_t place = std::int64_t{at.above} + kept;
      if ((is_above || is_kept_tie) && place < taken.room) {
        taken.indices[place] = taken.offset + static_cast<Index>(i + j);
        taken.values[place] = tile->of[v].at[j];
        tile->of[v].at[j] = 0;
        has_taken = true;
      }
      at = at + Counts{is_above ? 1u : 0u, is_tie ? 1u : 0u};
    }
    if (has_taken) StoreFour(tile->of[v], left, tile->is_aligned, tile->residual + i);
  }
  return up_to_end;
}

}  // namespace hvd_sparse::cuda

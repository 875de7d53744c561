/// Error feedback and taking in one pass over the device's memory: gradient and residual are read
/// once, the residual is written once, and what is taken lies in index order.
///
/// A block works on one tile of 8 warps x 32 lanes x 4 x 4 entries, which it keeps in registers:
///
///     load and add; find the entries to take        each lane for itself
///     where do they go?                             sums over lanes, over warps, over tiles
///     write them; write the residual without them   each lane for itself
///
/// A warp reads 4 times 128 neighbouring entries, so order within it is by vector, lane, entry. The
/// counts of the 4 vectors, at most 128 each, travel through one sum over the lanes as the bytes of
/// a word.

#include <algorithm>

#include "csrc/cuda/digits.cuh"
#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/look_back.cuh"
#include "csrc/cuda/take.h"

namespace hvd_sparse::cuda {

/// What the blocks of a pass share.
struct Pass {
  Totals totals;
  unsigned begun;  // tiles
};

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kVectors = 4;
constexpr std::int64_t kOfWarp = kVectors * kWarp * 4, kTile = kWarps * kOfWarp;

// ---- Which entries are taken --------------------------------------------------------------------

// Begin() reads what lies on the device; false, in all threads alike, if there is nothing to do.

enum class Kind { kStays, kAbove, kTie };

/// |x| > threshold, and never NaN.
struct AboveThreshold {
  static constexpr bool kHasTies = false;

  float threshold;
  const float* on_device;  ///< where it lies, unless null

  __device__ bool Begin() {
    if (on_device != nullptr) threshold = *on_device;
    return true;
  }
  __device__ Kind Of(float x) const { return fabsf(x) > threshold ? Kind::kAbove : Kind::kStays; }
  __device__ unsigned Kept(unsigned /*ties*/) const { return 0; }
};

/// What an exact top-k keeps; zeros are never taken.
struct UpToCut {
  static constexpr bool kHasTies = true;

  std::uint32_t last;       ///< the bits of the smallest magnitude kept
  unsigned ties;            ///< so many of those are kept
  const Prefix* on_device;  ///< where both lie, unless null
  Missed missed;            ///< then only if so

  __device__ bool Begin() {
    if (on_device == nullptr) return true;
    last = on_device->bits;
    ties = on_device->rest;
    return missed.OnDevice();
  }
  __device__ Kind Of(float x) const {
    const std::uint32_t magnitude = Magnitude(x);
    if (magnitude == 0 || magnitude < last) return Kind::kStays;
    return magnitude == last ? Kind::kTie : Kind::kAbove;
  }
  /// How many of the first ties are kept.
  __device__ unsigned Kept(unsigned first) const { return min(first, ties); }
};

// ---- Counting within a tile ---------------------------------------------------------------------

/// Byte `vector` of a word.
__device__ unsigned ByteOf(unsigned word, int vector) { return word >> (8 * vector) & 0xffu; }

__device__ unsigned SumOfBytes(unsigned word) {
  return ByteOf(word, 0) + ByteOf(word, 1) + ByteOf(word, 2) + ByteOf(word, 3);
}

/// Of 16 entries, a bit each: how many there are in each vector of 4, as bytes.
__device__ unsigned CountVectors(unsigned bits) {
  unsigned counts = 0;
  for (int v = 0; v < kVectors; ++v) counts |= __popc(bits >> (4 * v) & 0xfu) << (8 * v);
  return counts;
}

/// How the entries of one kind are spread over a warp.
struct Spread {
  unsigned before;  ///< by vector, as bytes: in the lanes before this one
  unsigned all;     ///< by vector, as bytes: in all lanes
};

__device__ Spread SpreadOver(unsigned bits, int lane) {
  const unsigned own = CountVectors(bits);
  const unsigned up_to_own = WarpPrefixSum(own, lane);
  // No byte borrows: none is smaller than its own part.
  return {up_to_own - own, __shfl_sync(kAllLanes, up_to_own, kWarp - 1)};
}

// ---- The pass -----------------------------------------------------------------------------------

template <typename Source, typename Rule>
__global__ void __launch_bounds__(kThreads)
    TakeKernel(Source source, Rule rule, Span<float> residual, bool is_aligned, Taken taken,
               Pass* pass, TileWord* words) {
  if (!rule.Begin()) return;
  __shared__ unsigned my_tile, not_finite;
  __shared__ Counts of_warp[kWarps], before_tile;
  if (threadIdx.x == 0) {
    my_tile = atomicAdd(&pass->begun, 1u);
    not_finite = 0;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t tile = my_tile;
  const std::int64_t begin = tile * kTile + warp * kOfWarp + lane * 4;  // of the first vector
  const auto place_of = [begin](int v) { return begin + std::int64_t{v} * kWarp * 4; };

  Four<float> entries[kVectors];
  unsigned above = 0, ties = 0, bad = 0;  // bit 4 v + j: entry j of vector v
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t i = place_of(v), left = residual.size - i;
    if (left <= 0) continue;
    const Four<float> before = LoadFour(residual.data + i, left, is_aligned);
    entries[v] = source.JoinFour(i, left, before, &bad);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Kind kind = j < left ? rule.Of(entries[v].at[j]) : Kind::kStays;
      above |= static_cast<unsigned>(kind == Kind::kAbove) << (4 * v + j);
      ties |= static_cast<unsigned>(kind == Kind::kTie) << (4 * v + j);
    }
  }

  const Spread above_in_warp = SpreadOver(above, lane);
  const Spread ties_in_warp = Rule::kHasTies ? SpreadOver(ties, lane) : Spread{0, 0};
  if (Source::kChanges) {
    bad = WarpSum(bad);
    if (lane == 0 && bad > 0) atomicAdd(&not_finite, bad);
  }
  if (lane == 0) of_warp[warp] = {SumOfBytes(above_in_warp.all), SumOfBytes(ties_in_warp.all)};
  __syncthreads();
  if (warp == 0) {
    Counts own = {0, 0};
    for (const Counts& counts : of_warp) own = own + counts;
    const Counts before = LookBack(words, tile, own);
    if (lane == 0) {
      before_tile = before;
      if (tile == gridDim.x - 1) {
        pass->totals.above = before.above + own.above;
        pass->totals.ties = before.ties + own.ties;
      }
      if (not_finite > 0) atomicAdd(&pass->totals.not_finite, not_finite);
    }
  }
  __syncthreads();

  Counts before = before_tile;
  for (int w = 0; w < warp; ++w) before = before + of_warp[w];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const std::int64_t i = place_of(v), left = residual.size - i;
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
        taken.values[place] = entries[v].at[j];
        entries[v].at[j] = 0;
        has_taken = true;
      }
      at = at + Counts{is_above ? 1u : 0u, is_tie ? 1u : 0u};
    }
    if (Source::kChanges || has_taken) StoreFour(entries[v], left, is_aligned, residual.data + i);
  }
}

std::int64_t TilesFor(std::int64_t size) { return (size + kTile - 1) / kTile; }

/// Calls `call` with what gives the entries: a gradient and the residual, or the residual alone.
template <typename Call>
void WithSourceOf(const Feedback& feedback, Call call) {
  if (feedback.grad.data == nullptr) return call(AsItIs());
  WithGradientOf(feedback, call);
}

template <typename Source, typename Rule>
void LaunchTake(Source source, Rule rule, Span<float> residual, const Taken& taken,
                const TakeScratch& scratch, cudaStream_t stream) {
  const std::int64_t tiles = TilesFor(residual.size);
  if (tiles == 0) return;
  TakeKernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(
      source, rule, residual, IsAligned(residual.data), taken, scratch.pass, scratch.words);
  CheckLaunch("take entries from a residual");
}

/// For one call's work.
TakeScratch ScratchOf(Work* work, std::int64_t size) {
  return {work->Zeros<Pass>(1), work->Zeros<TileWord>(TilesFor(size))};
}

// ---- Error feedback alone -----------------------------------------------------------------------

/// Blocks that fill any device of today.
constexpr std::int64_t kMostBlocks = 4096;

template <typename Source>
__global__ void __launch_bounds__(kThreads)
    AccumulateKernel(Source source, Span<float> residual, bool is_aligned, unsigned* not_finite) {
  unsigned bad = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  for (; i < residual.size; i += step) {
    const std::int64_t left = residual.size - i;
    const Four<float> before = LoadFour(residual.data + i, left, is_aligned);
    StoreFour(source.JoinFour(i, left, before, &bad), left, is_aligned, residual.data + i);
  }
  bad = WarpSum(bad);
  if (threadIdx.x % kWarp == 0 && bad > 0) atomicAdd(not_finite, bad);
}

}  // namespace

void LaunchAccumulate(const Feedback& feedback, unsigned* not_finite, cudaStream_t stream) {
  const Span<float> residual = feedback.residual;
  const std::int64_t blocks = (residual.size + kThreads * 4 - 1) / (kThreads * 4);
  if (blocks == 0) return;
  WithGradientOf(feedback, [&](const auto& source) {
    AccumulateKernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0, stream>>>(
        source, residual, IsAligned(residual.data), not_finite);
    CheckLaunch("add a gradient to a residual");
  });
}

TakeScratch TakeScratch::From(Divider* divider, std::int64_t size) {
  return {divider->Take<Pass>(1), divider->Take<TileWord>(TilesFor(size))};
}

const Totals* TakeScratch::totals() const { return &pass->totals; }

const Totals* LaunchTakeAbove(const Feedback& feedback, float threshold, const Taken& taken,
                              Work* work) {
  const TakeScratch scratch = ScratchOf(work, feedback.residual.size);
  WithSourceOf(feedback, [&](const auto& source) {
    LaunchTake(source, AboveThreshold{threshold, nullptr}, feedback.residual, taken, scratch,
               work->stream());
  });
  return scratch.totals();
}

void LaunchTakeAbove(const Feedback& feedback, const float* threshold, const Taken& taken,
                     const TakeScratch& scratch, cudaStream_t stream) {
  WithSourceOf(feedback, [&](const auto& source) {
    LaunchTake(source, AboveThreshold{0, threshold}, feedback.residual, taken, scratch, stream);
  });
}

const Totals* LaunchTakeCut(Span<float> residual, TopKCut cut, const Taken& taken, Work* work) {
  const TakeScratch scratch = ScratchOf(work, residual.size);
  const UpToCut rule{FloatBits(cut.magnitude), static_cast<unsigned>(cut.ties), nullptr, {}};
  LaunchTake(AsItIs(), rule, residual, taken, scratch, work->stream());
  return scratch.totals();
}

void LaunchTakeCut(Span<float> residual, const Prefix* cut, const Missed& missed,
                   const Taken& taken, const TakeScratch& scratch, cudaStream_t stream) {
  LaunchTake(AsItIs(), UpToCut{0, 0, cut, missed}, residual, taken, scratch, stream);
}

}  // namespace hvd_sparse::cuda

/// A block of threads works on one tile, which has one gradient and one segment. Each segment has a
/// pile of its own, and running counts begin anew with it; its tiles lie one behind the other.

#include <algorithm>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/pile.cuh"
#include "csrc/cuda/step/launches.h"

namespace hvd_sparse::cuda {
namespace {

/// Enough blocks to fill any device of today.
constexpr unsigned kMostBlocks = 1024;

/// Blocks of a taking pass that run on a multiprocessor at a time: while some wait for tile
/// numbers, tables and counts, the others load. This limits a thread to 48 registers, or to 64 if a
/// multiprocessor runs no more than 1,024 threads.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kBlocksAtATime = 4;
#else
constexpr int kBlocksAtATime = 5;
#endif

/// Returns the memory for the candidates of a tile's segment.
__device__ Taken CandidatesOf(const SelectionArgs& work, const Tile& tile) {
  const Index begin = work.bucket.segments[tile.segment].candidates;
  return {work.indices + begin, work.values + begin, work.bucket.controls[tile.segment].room,
          tile.begin};
}

/// Returns the memory for the candidates of a segment, in no order.
__device__ Pile PileOf(const SelectionArgs& work, int segment) {
  const Index begin = work.bucket.segments[segment].candidates;
  return {work.pile_indices + begin, work.pile_values + begin, work.bucket.controls[segment].room,
          &work.segments[segment].above};
}

template <bool kHasVelocity>
__global__ void __launch_bounds__(kTakeThreads, kBlocksAtATime)
    FeedbackAndTakeKernel(SelectionArgs work) {
  const Tile tile = work.bucket.tiles[blockIdx.x];
  const GradientMemory memory = work.bucket.gradient_memory[tile.gradient];
  const Pile pile = PileOf(work, tile.segment);
  const float threshold = work.tried[tile.segment];
  TileEntries entries(work.residual + tile.begin, tile.size);
  WithTypeOnDevice(memory.gradient_type, [&](auto number) {
    using T = decltype(number);
    const T* const gradient =
        InDeviceMemory(static_cast<const T*>(memory.gradient)) + tile.in_gradient;
    unsigned* const not_finite = &work.pass->not_finite;
    if constexpr (kHasVelocity) {
      const WithGradient<T> into_velocity(gradient, work.momentum, work.scale);
      float* const velocity = work.velocity + tile.begin;
      entries.Load(WithVelocity<T>(into_velocity, velocity, memory.decay), 0, not_finite);
    } else {
      entries.Load(WithGradient<T>(gradient, memory.decay, work.scale), 0, not_finite);
    }
  });
  PilePart* const part = work.parts + (blockIdx.x * kTakeWarps + threadIdx.x / kWarp);
  TakeToPile(threshold, /*has_changed=*/true, entries, tile.begin, pile, part);
}

/// Puts the candidates of a group of tiles in order. The first group of a segment notes how many
/// the segment has, and lists its tiles if the threshold has missed.
__global__ void __launch_bounds__(kTakeThreads) OrderKernel(SelectionArgs work) {
  __shared__ OrderShared shared;
  const unsigned number = NextNumber(&work.pass->begun, &shared.number);
  const TileGroup group = work.bucket.groups[number];
  const SegmentPlace segment = work.bucket.segments[group.segment];
  const Pile pile = PileOf(work, group.segment);
  const auto first = static_cast<unsigned>(segment.first_group);
  const auto tiles = static_cast<unsigned>(segment.end_tile - group.first_tile);
  PutInOrder(pile, work.parts + group.first_tile * kTakeWarps, tiles * kTakeWarps,
             work.group_words + first, number - first, work.indices + segment.candidates,
             work.values + segment.candidates, &shared);
  if (number != first) return;  // in all threads
  const ThresholdControl control = work.bucket.controls[group.segment];
  SegmentPass* const own = work.segments + group.segment;
  const bool has_missed = own->HasMissed(control);
  if (threadIdx.x == 0) {
    own->taken = min(own->above, control.room);
    if (own->above > control.room) atomicOr(&work.pass->flags, static_cast<unsigned>(kOverflow));
    if (has_missed) shared.number = atomicAdd(&work.pass->missed, tiles);
  }
  if (!has_missed) return;
  __syncthreads();
  for (unsigned t = threadIdx.x; t < tiles; t += kTakeThreads) {
    work.missed[shared.number + t] = static_cast<unsigned>(segment.first_tile) + t;
  }
}

// ---- Segments whose threshold has missed --------------------------------------------------------

__device__ bool HasMissed(const SelectionArgs& work, int segment) {
  return work.segments[segment].HasMissed(work.bucket.controls[segment]);
}

/// Puts the candidates back, and clears the segment's digits.
__global__ void __launch_bounds__(kTakeThreads) PutBackKernel(SelectionArgs work) {
  if (work.pass->missed == 0) return;
  const Chunk chunk = work.bucket.chunks[blockIdx.x];
  if (!HasMissed(work, chunk.segment)) return;
  if (chunk.begin == 0) {
    auto* const words = reinterpret_cast<unsigned*>(work.digits + chunk.segment);
    for (unsigned i = threadIdx.x; i < sizeof(Digits) / sizeof(unsigned); i += kTakeThreads) {
      words[i] = 0;
    }
  }
  const unsigned taken = work.segments[chunk.segment].taken;
  const Index candidates = work.bucket.segments[chunk.segment].candidates;
  for (unsigned i = threadIdx.x; i < kChunkEntries; i += kTakeThreads) {
    const unsigned n = static_cast<unsigned>(chunk.begin) + i;
    if (n < taken) work.residual[work.indices[candidates + n]] = work.values[candidates + n];
  }
}

/// Counts the digits of one level, after finding those of the level before. A block works on
/// neighbours in the list of tiles, so that it meets few segments.
__global__ void __launch_bounds__(kTakeThreads) CountDigitsKernel(SelectionArgs work, int level) {
  __shared__ unsigned histogram[kDigits];
  const unsigned tiles = work.pass->missed, each = (tiles + gridDim.x - 1) / gridDim.x;
  const unsigned end = min((blockIdx.x + 1) * each, tiles);
  for (unsigned n = blockIdx.x * each; n < end;) {
    const unsigned t = work.missed[n];
    const int s = work.bucket.tiles[t].segment;
    const SegmentPlace segment = work.bucket.segments[s];
    const unsigned stop = min(end, n + static_cast<unsigned>(segment.end_tile) - t);
    const unsigned k = work.bucket.controls[s].k;
    Digits* const digits = work.digits + s;
    Prefix prefix = {0, k};
    if (level > 0) {
      const bool notes = t == static_cast<unsigned>(segment.first_tile);
      prefix = FindLevel<kTakeThreads>(digits, level - 1, k, notes);
    }
    ClearCounts<kTakeThreads>(histogram);
    __syncthreads();
    const int above = level == 0 ? 31 : ShiftOf(level - 1);
    for (; n < stop; ++n) {
      const Tile tile = work.bucket.tiles[work.missed[n]];
      TileEntries entries(work.residual + tile.begin, tile.size);
      entries.Load(AsItIs(), 0, nullptr);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int left = entries.size - TileEntries::BeginOf(v);
        if (left <= 0) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t magnitude = Magnitude(entries.of[v].at[j]);
          if (j >= left || magnitude >> above != prefix.bits) continue;
          atomicAdd(histogram + DigitOf(magnitude, level), 1u);
        }
      }
    }
    __syncthreads();
    AddCounts<kTakeThreads>(histogram, digits->histograms[level]);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kTakeThreads, kBlocksAtATime) TakeCutKernel(SelectionArgs work) {
  __shared__ TakeShared shared;
  const unsigned tiles = work.pass->missed;
  if (blockIdx.x >= tiles) return;
  do {
    const unsigned n = NextNumber(&work.pass->begun_again, &shared.number);
    if (n >= tiles) return;
    const unsigned number = work.missed[n];
    const Tile tile = work.bucket.tiles[number];
    const SegmentPlace segment = work.bucket.segments[tile.segment];
    const Prefix cut = FindLevel<kTakeThreads>(work.digits + tile.segment, kLevels - 1,
                                               work.bucket.controls[tile.segment].k, false);
    const UpToCut rule{cut.bits, cut.rest};
    TileEntries entries(work.residual + tile.begin, tile.size);
    entries.Load(AsItIs(), 0, nullptr);
    const unsigned first = static_cast<unsigned>(segment.first_tile);
    const Counts up_to_end = TakeTile(rule, &entries, CandidatesOf(work, tile),
                                      work.words_again + first, number - first, &shared);
    if (threadIdx.x == 0 && number + 1 == static_cast<unsigned>(segment.end_tile)) {
      work.segments[tile.segment].taken = up_to_end.above + rule.Kept(up_to_end.ties);
    }
  } while (tiles > gridDim.x);
}

}  // namespace

void LaunchFeedbackAndTake(const SelectionArgs& work, cudaStream_t stream) {
  const unsigned tiles = work.bucket.tile_count;
  if (work.velocity == nullptr) {
    FeedbackAndTakeKernel<false><<<tiles, kTakeThreads, 0, stream>>>(work);
  } else {
    FeedbackAndTakeKernel<true><<<tiles, kTakeThreads, 0, stream>>>(work);
  }
  CheckLaunch("take entries from the residual of a bucket");
  OrderKernel<<<work.bucket.group_count, kTakeThreads, 0, stream>>>(work);
  CheckLaunch("put the candidates of a bucket in order");
}

void LaunchTopKWhereMissed(const SelectionArgs& work, cudaStream_t stream) {
  const unsigned blocks = std::min(work.bucket.tile_count, kMostBlocks);
  PutBackKernel<<<work.bucket.chunk_count, kTakeThreads, 0, stream>>>(work);
  CheckLaunch("put back what a pass took in vain");
  for (int level = 0; level < kLevels; ++level) {
    CountDigitsKernel<<<blocks, kTakeThreads, 0, stream>>>(work, level);
    CheckLaunch("count the digits of a residual");
  }
  TakeCutKernel<<<blocks, kTakeThreads, 0, stream>>>(work);
  CheckLaunch("take the largest entries of a residual");
}

void SelectionArgs::DivideZeros(const BucketLayout& layout, Divider* divider) {
  const auto tiles = static_cast<std::int64_t>(layout.tiles.size());
  const auto count = static_cast<std::int64_t>(layout.segments.size());
  pass = divider->Take<BucketPass>(1);
  segments = divider->Take<SegmentPass>(count);
  group_words = divider->Take<TileWord>(static_cast<std::int64_t>(layout.groups.size()));
  words_again = divider->Take<TileWord>(tiles);
  segment_words = divider->Take<TileWord>(count);
}

void SelectionArgs::DivideRest(const BucketLayout& layout, Divider* divider) {
  const auto count = static_cast<std::int64_t>(layout.segments.size());
  tried = divider->Take<float>(count);
  indices = divider->Take<Index>(layout.candidates);
  values = divider->Take<float>(layout.candidates);
  pile_indices = divider->Take<Index>(layout.candidates);
  pile_values = divider->Take<float>(layout.candidates);
  const auto tiles = static_cast<std::int64_t>(layout.tiles.size());
  missed = divider->Take<unsigned>(tiles);
  parts = divider->Take<PilePart>(tiles * kTakeWarps);
  digits = divider->Take<Digits>(count);
}

}  // namespace hvd_sparse::cuda

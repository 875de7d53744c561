/// Gradient and residual are read once, the residual is written once, and the taken entries lie in
/// index order: see take_tile.cuh and pile.cuh. A block of threads works on one tile.

#include <algorithm>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/kernels/pile.cuh"

namespace hvd_sparse::cuda {
namespace {

/// State that the blocks of a pass share; all zero at first.
struct Pass {
  Totals totals;
  unsigned begun;  // tiles that have begun
};

template <typename Rule>
__global__ void __launch_bounds__(kTakeThreads)
    TakeKernel(Rule rule, Span<float> residual, Taken taken, Pass* pass, TileWord* words) {
  __shared__ TakeShared shared;
  const unsigned number = NextNumber(&pass->begun, &shared.number);
  const std::int64_t begin = number * kTileEntries;
  TileEntries tile(residual.data + begin, min(residual.size - begin, kTileEntries));
  tile.Load(AsItIs(), begin, nullptr);
  taken.offset += static_cast<Index>(begin);
  const Counts up_to_end = TakeTile(rule, &tile, taken, words, number, &shared);
  if (threadIdx.x == 0 && number == gridDim.x - 1) {
    pass->totals.above = up_to_end.above;
    pass->totals.ties = up_to_end.ties;
  }
}

template <typename Rule>
const Totals* LaunchTake(Rule rule, Span<float> residual, const Taken& taken, Work* work) {
  const std::int64_t tiles = (residual.size + kTileEntries - 1) / kTileEntries;
  Pass* const pass = work->Zeros<Pass>(1);
  TileWord* const words = work->Zeros<TileWord>(tiles);
  if (tiles > 0) {
    TakeKernel<<<static_cast<unsigned>(tiles), kTakeThreads, 0, work->stream()>>>(
        rule, residual, taken, pass, words);
    CheckLaunch("take entries from a residual");
  }
  return &pass->totals;
}

// ---- By way of a pile ---------------------------------------------------------------------------

/// Blocks that run on a multiprocessor at a time.
constexpr int kBlocksAtATime = 5;

template <typename Source>
__global__ void __launch_bounds__(kTakeThreads, kBlocksAtATime)
    TakeToPileKernel(Source source, float threshold, Span<float> residual, Index offset, Pile pile,
                     PilePart* parts, unsigned* not_finite) {
  const std::int64_t begin = blockIdx.x * kTileEntries;
  TileEntries tile(residual.data + begin, min(residual.size - begin, kTileEntries));
  tile.Load(source, begin, not_finite);
  TakeToPile(threshold, Source::kChanges, tile, offset + static_cast<Index>(begin), pile,
             parts + (blockIdx.x * kTakeWarps + threadIdx.x / kWarp));
}

__global__ void __launch_bounds__(kTakeThreads)
    OrderKernel(Pile pile, const PilePart* parts, unsigned count, Taken taken, Pass* pass,
                TileWord* words) {
  __shared__ OrderShared shared;
  const unsigned number = NextNumber(&pass->begun, &shared.number);
  const unsigned first = number * kTakeThreads;
  PutInOrder(pile, parts + first, count - first, words, number, taken.indices, taken.values,
             &shared);
}

template <typename Source>
const Totals* LaunchByPile(Source source, float threshold, Span<float> residual,
                           const Taken& pile_memory, const Taken& taken, Work* work) {
  const std::int64_t tiles = (residual.size + kTileEntries - 1) / kTileEntries;
  const std::int64_t groups = (tiles + kGroupTiles - 1) / kGroupTiles;
  Pass* const pass = work->Zeros<Pass>(1);
  if (tiles == 0) return &pass->totals;
  TileWord* const words = work->Zeros<TileWord>(groups);
  PilePart* const parts = work->Scratch<PilePart>(tiles * kTakeWarps);
  const Pile pile{pile_memory.indices, pile_memory.values, static_cast<unsigned>(taken.room),
                  &pass->totals.above};
  TakeToPileKernel<<<static_cast<unsigned>(tiles), kTakeThreads, 0, work->stream()>>>(
      source, threshold, residual, taken.offset, pile, parts, &pass->totals.not_finite);
  CheckLaunch("take entries from a residual");
  OrderKernel<<<static_cast<unsigned>(groups), kTakeThreads, 0, work->stream()>>>(
      pile, parts, static_cast<unsigned>(tiles * kTakeWarps), taken, pass, words);
  CheckLaunch("put the entries taken in order");
  return &pass->totals;
}

// ---- Error feedback alone -----------------------------------------------------------------------

/// Enough blocks to fill any device of today.
constexpr std::int64_t kMostBlocks = 4096;

template <typename Source>
__global__ void __launch_bounds__(kTakeThreads)
    AccumulateKernel(Source source, Span<float> residual, bool is_aligned, unsigned* not_finite) {
  unsigned bad = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kTakeThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kTakeThreads + threadIdx.x) * 4;
  for (; i < residual.size; i += step) {
    const std::int64_t left = residual.size - i;
    const Four<float> before = LoadFour(residual.data + i, left, is_aligned);
    const auto inflow = source.LoadInflow(i, left);
    StoreFour(source.JoinFour(i, left, before, inflow, &bad), left, is_aligned, residual.data + i);
  }
  bad = WarpSum(bad);
  if (threadIdx.x % kWarp == 0 && bad > 0) atomicAdd(not_finite, bad);
}

}  // namespace

void LaunchAccumulate(const Feedback& feedback, unsigned* not_finite, cudaStream_t stream) {
  const Span<float> residual = feedback.residual;
  const std::int64_t blocks = (residual.size + kTakeThreads * 4 - 1) / (kTakeThreads * 4);
  if (blocks == 0) return;
  WithGradientOf(feedback, [&](const auto& source) {
    AccumulateKernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kTakeThreads, 0,
                       stream>>>(source, residual, IsAligned(residual.data), not_finite);
    CheckLaunch("add a gradient to a residual");
  });
}

const Totals* LaunchTakeByPile(const Feedback& feedback, float threshold, const Taken& pile,
                               const Taken& taken, Work* work) {
  const Totals* totals = nullptr;
  const auto take = [&](const auto& source) {
    totals = LaunchByPile(source, threshold, feedback.residual, pile, taken, work);
  };
  feedback.grad.data == nullptr ? take(AsItIs()) : WithGradientOf(feedback, take);
  return totals;
}

void LaunchTakeAbove(Span<float> residual, float threshold, const Taken& taken, Work* work) {
  LaunchTake(AboveThreshold{threshold}, residual, taken, work);
}

const Totals* LaunchTakeCut(Span<float> residual, TopKCut cut, const Taken& taken, Work* work) {
  const UpToCut rule{FloatBits(cut.magnitude), static_cast<unsigned>(cut.ties)};
  return LaunchTake(rule, residual, taken, work);
}

}  // namespace hvd_sparse::cuda

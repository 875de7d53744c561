/// The k largest of a block's entries by radix select and one compaction.
///
/// A block of threads works on a tile of kWarps x kSteps x 32 entries. A warp takes 32 neighbours a
/// step, so a ballot says how many of those before a lane are kept. look_back.cuh counts those kept
/// in the tiles before.

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kSteps = 8;
constexpr int kOfWarp = kSteps * kWarp, kTile = kWarps * kOfWarp;

/// Enough blocks to fill any device of today.
constexpr std::int64_t kMostBlocks = 1024;

/// Counts the digits of one level, after finding that of the level before.
__global__ void __launch_bounds__(kThreads)
    CountBlockKernel(DeviceBlock block, unsigned k, int level, Digits* digits) {
  __shared__ unsigned histogram[kDigits];
  const unsigned count = block.CountOnDevice();
  if (count <= k || k == 0) return;  // in all threads: no cut is needed
  Prefix prefix = {0, k};
  if (level > 0) prefix = FindLevel<kThreads>(digits, level - 1, k, blockIdx.x == 0);
  ClearCounts<kThreads>(histogram);
  __syncthreads();
  CountLevel<kThreads>(block.values, count, prefix, level, blockIdx.x, gridDim.x, histogram);
  __syncthreads();
  AddCounts<kThreads>(histogram, digits->histograms[level]);
}

/// The cut of the k largest entries, whose digits have been counted.
struct LargestEntries {
  AllEntries which;
  Digits* digits;

  /// Returns the cut among `count` entries; if there are no more than k, it keeps all.
  __device__ Prefix Find(unsigned count, unsigned k) const {
    if (k == 0) return {0xffffffffu, 0};
    if (count <= k) return {0, 0x7fffffffu};
    return FindLevel<kThreads>(digits, kLevels - 1, k, false);
  }
};

/// The cut of a group, which is known.
struct GroupEntries {
  OneSignEntries which;
  Prefix cut;

  __device__ Prefix Find(unsigned /*count*/, unsigned /*k*/) const { return cut; }
};

template <typename Cut>
__global__ void __launch_bounds__(kThreads)
    CompactKernel(DeviceBlock from, DeviceBlock to, unsigned k, KeepTopKOptions options,
                  unsigned* begun, TileWord* words, Cut known) {
  __shared__ unsigned my_tile;
  __shared__ Counts of_warp[kWarps], before_tile;
  if (threadIdx.x == 0) my_tile = atomicAdd(begun, 1u);
  __syncthreads();
  const unsigned tile = my_tile, count = from.CountOnDevice();
  if (tile == 0 && threadIdx.x == 0) {
    DeviceBlockHeader header = *from.header;
    header.count = min(count, k);
    *to.header = header;
  }
  if (tile > 0 && tile * kTile >= count) return;  // in all threads
  const Prefix cut = known.Find(count, k);

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned before_lane = (1u << lane) - 1;
  const unsigned begin = tile * kTile + static_cast<unsigned>(warp * kOfWarp + lane);
  Index indices[kSteps];
  float values[kSteps];
  unsigned above[kSteps], ties[kSteps];  // bit l: the entry of lane l
  Counts own = {0, 0};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const unsigned i = begin + static_cast<unsigned>(step * kWarp);
    const bool is_there = i < count;
    indices[step] = is_there ? from.indices[i] : 0;
    values[step] = is_there ? from.values[i] : 0.0f;
    const std::uint32_t magnitude = MagnitudeInBlock(values[step]);
    const bool counts = is_there && known.which.Has(values[step]);
    above[step] = __ballot_sync(kAllLanes, counts && magnitude > cut.bits);
    ties[step] = __ballot_sync(kAllLanes, counts && magnitude == cut.bits);
    own = own + Counts{static_cast<unsigned>(__popc(above[step])),
                       static_cast<unsigned>(__popc(ties[step]))};
  }
  if (lane == 0) of_warp[warp] = own;
  __syncthreads();
  if (warp == 0) {
    Counts in_tile = {0, 0};
    for (const Counts& counts : of_warp) in_tile = in_tile + counts;
    const Counts before = LookBack(words, tile, in_tile);
    if (lane == 0) before_tile = before;
  }
  __syncthreads();

  Counts before = before_tile;
  for (int w = 0; w < warp; ++w) before = before + of_warp[w];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const Counts at = before + Counts{static_cast<unsigned>(__popc(above[step] & before_lane)),
                                      static_cast<unsigned>(__popc(ties[step] & before_lane))};
    before = before + Counts{static_cast<unsigned>(__popc(above[step])),
                             static_cast<unsigned>(__popc(ties[step]))};
    if (begin + static_cast<unsigned>(step * kWarp) >= count) continue;
    const bool is_above = (above[step] >> lane & 1u) != 0;
    const bool is_kept_tie = (ties[step] >> lane & 1u) != 0 && at.ties < cut.rest;
    const auto index = static_cast<std::uint32_t>(indices[step]);
    if (is_above || is_kept_tie) {
      const std::int64_t place = std::int64_t{at.above} + min(at.ties, cut.rest);
      if (place >= to.capacity) continue;
      to.indices[place] = static_cast<Index>(options.marks ? index | kSurvivedBit : index);
      to.values[place] = values[step];
    } else {
      const std::int64_t position = index & ~kSurvivedBit;
      if (position < options.residual.size) options.residual.data[position] = values[step];
    }
  }
}

std::int64_t TilesFor(std::int64_t capacity) { return (capacity + kTile - 1) / kTile; }

}  // namespace

TopKScratch TopKScratch::From(Divider* divider, std::int64_t capacity) {
  return {divider->Take<Digits>(1), divider->Take<unsigned>(1),
          divider->Take<TileWord>(std::max<std::int64_t>(TilesFor(capacity), 1))};
}

void LaunchKeepTopK(const KeepTopKOptions& options, const DeviceBlock& from, const DeviceBlock& to,
                    const TopKScratch& scratch, cudaStream_t stream) {
  Require(options.k >= 0 && options.k <= to.capacity, "k must lie in [0, ", to.capacity, "], got ",
          options.k);
  const auto k = static_cast<unsigned>(options.k);
  const auto tiles = static_cast<unsigned>(std::max<std::int64_t>(TilesFor(from.capacity), 1));
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(tiles, kMostBlocks));
  for (int level = options.is_counted ? 1 : 0; level < kLevels; ++level) {
    CountBlockKernel<<<blocks, kThreads, 0, stream>>>(from, k, level, scratch.digits);
    CheckLaunch("count the digits of a block");
  }
  CompactKernel<<<tiles, kThreads, 0, stream>>>(from, to, k, options, scratch.begun, scratch.words,
                                                LargestEntries{{}, scratch.digits});
  CheckLaunch("keep the largest entries of a block");
}

void LaunchKeepGroup(const SignGroup& group, Span<float> residual, const DeviceBlock& from,
                     const DeviceBlock& to, const TopKScratch& scratch, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(group.count), ties = static_cast<unsigned>(group.ties);
  const auto tiles = static_cast<unsigned>(std::max<std::int64_t>(TilesFor(from.capacity), 1));
  const GroupEntries known{{group.negative ? 0x80000000u : 0}, {FloatBits(group.cut), ties}};
  CompactKernel<<<tiles, kThreads, 0, stream>>>(from, to, count,
                                                KeepTopKOptions{group.count, true, false, residual},
                                                scratch.begun, scratch.words, known);
  CheckLaunch("keep the entries of one sign");
}

}  // namespace hvd_sparse::cuda

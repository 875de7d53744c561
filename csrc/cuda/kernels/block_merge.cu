/// Merging by merge path: each block of threads finds by itself where its tile of the result begins
/// in either input.
///
/// A step of the merge takes the lower index, the own one first if both are equal. So d steps have
/// taken d entries from both inputs together, whatever they are: a binary search along that
/// diagonal finds how many were own. Each block makes kTile steps, each of its threads kItems:
///
///     split the tile's diagonals            32 lanes probe at a time, in memory
///     load the entries between              into shared memory
///     split again, a thread each; merge     into registers
///     find the places of the results        equal indices make one entry of two: look_back.cuh
///
/// The two steps of an equal index may fall to two threads, or two tiles. The own entry's step
/// looks at the next entry of the other input and adds it; the other entry's step looks at the own
/// entry before it and makes nothing. So one entry more than the tile has is loaded from either
/// input.
///
/// How many tiles have steps depends on the header of `theirs`, and an aborted message may still
/// write there. So a block of threads reads both counts once, for all its threads, and publishes
/// even if it has no steps: whatever other blocks have read, none waits for ever.
///
/// Green, Odeh and Birk, "Merge Path - A Visually Intuitive Approach to Parallel Merging", 2014,
/// https://arxiv.org/abs/1406.2628.

#include "csrc/base/error.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {

struct MergePass {
  unsigned begun, done;  ///< tiles that have begun, and that are done
  unsigned count, flags;
};

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kItems = 8, kTile = kThreads * kItems;

/// Returns how many own entries the first `diagonal` steps take. Called by all lanes of a warp.
__device__ unsigned SplitByWarp(const Index* own, unsigned own_count, const Index* theirs,
                                unsigned their_count, unsigned diagonal, int lane) {
  unsigned low = diagonal > their_count ? diagonal - their_count : 0;
  unsigned high = min(diagonal, own_count);
  while (low < high) {
    const unsigned step = (high - low + kWarp - 1) / kWarp;
    const unsigned i = low + static_cast<unsigned>(lane) * step;
    const bool is_before = i < high && PositionOf(own[i]) <= PositionOf(theirs[diagonal - 1 - i]);
    const auto before = static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, is_before)));
    if (before == 0) return low;
    high = min(high, low + before * step);
    low += (before - 1) * step + 1;
  }
  return high;
}

/// Like SplitByWarp, but in shared memory and by one thread.
__device__ int SplitByThread(const Index* own, int own_count, const Index* theirs, int their_count,
                             int diagonal) {
  int low = diagonal > their_count ? diagonal - their_count : 0;
  int high = min(diagonal, own_count);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (PositionOf(own[middle]) <= PositionOf(theirs[diagonal - 1 - middle])) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// A tile's entries of one input; see MakeSteps for the one beyond.
struct Part {
  const Index* indices;
  const float* values;
  int count;
};

/// The results of a thread's steps. A step has made an entry if its bit is set.
struct Made {
  Index indices[kItems];
  float values[kItems];
  unsigned bits;
};

/// Makes `steps` steps from (a, b) on. If `has_before`, own.indices[-1] is the entry before the
/// tile's own ones; if `has_behind`, theirs.indices[theirs.count] is the one behind the tile's.
__device__ Made MakeSteps(const Part& own, const Part& theirs, int a, int b, int steps,
                          bool has_before, bool has_behind) {
  Made made;
  made.bits = 0;
#pragma unroll
  for (int step = 0; step < kItems; ++step) {
    if (step >= steps) continue;
    const bool has_their = b < theirs.count || has_behind;
    const std::uint32_t their_position = has_their ? PositionOf(theirs.indices[b]) : 0;
    const bool takes_own =
        a < own.count && (b >= theirs.count || PositionOf(own.indices[a]) <= their_position);
    if (takes_own) {
      const bool meets = has_their && PositionOf(own.indices[a]) == their_position;
      made.indices[step] = own.indices[a];
      made.values[step] = meets ? __fadd_rn(own.values[a], theirs.values[b]) : own.values[a];
      made.bits |= 1u << step;
      ++a;
    } else {
      const bool was_added =
          (a > 0 || has_before) && PositionOf(own.indices[a - 1]) == their_position;
      made.indices[step] = static_cast<Index>(their_position);
      made.values[step] = theirs.values[b];
      if (!was_added) made.bits |= 1u << step;
      ++b;
    }
  }
  return made;
}

/// Returns true if the positions from `begin` to `end` ascend, as far as this thread looks.
__device__ bool Ascends(const Index* indices, int begin, int end) {
  bool ascends = true;
  for (int i = begin + static_cast<int>(threadIdx.x); i + 1 < end; i += kThreads) {
    ascends &= PositionOf(indices[i]) < PositionOf(indices[i + 1]);
  }
  return ascends;
}

/// Writes the header of `out`. Called by the last block, when all counts and flags are complete.
__device__ void JoinHeaders(const DeviceBlock& own, const DeviceBlock& theirs,
                            const DeviceBlock& out, MergePass* pass) {
  const DeviceBlockHeader mine = *own.header, other = *theirs.header;
  DeviceBlockHeader joined = mine;
  joined.count = atomicAdd(&pass->count, 0u);
  joined.flags |= other.flags | atomicAdd(&pass->flags, 0u);
  if (mine.bucket != other.bucket || mine.step != other.step || mine.asked != other.asked) {
    joined.flags |= kDisagree;
  }
  if (mine.count > own.capacity || other.count > theirs.capacity) joined.flags |= kMalformed;
  joined.verdict.Note(other.verdict);
  *out.header = joined;
}

__global__ void __launch_bounds__(kThreads)
    MergeKernel(DeviceBlock own, DeviceBlock theirs, DeviceBlock out, MergePass* pass,
                TileWord* words, Digits* digits) {
  // Own entries from the one before the tile's on, then theirs up to the one behind; later the
  // result.
  __shared__ Index indices[kTile + 2];
  __shared__ float values[kTile + 2];
  __shared__ unsigned histogram[kDigits];
  __shared__ unsigned my_tile, counts[2], own_splits[2], of_warp[kWarps], before_tile, flags;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  if (thread == 0) {
    my_tile = atomicAdd(&pass->begun, 1u);
    counts[0] = own.CountOnDevice();
    counts[1] = theirs.CountOnDevice();
    flags = 0;
  }
  if (digits != nullptr) ClearCounts<kThreads>(histogram);
  __syncthreads();
  const unsigned own_count = counts[0], their_count = counts[1];
  const unsigned all = own_count + their_count, tile = my_tile;
  const unsigned begin = min(tile * kTile, all), end = min(begin + kTile, all);

  if (begin < end) {  // the same in all threads
    if (warp < 2) {
      const unsigned split = SplitByWarp(own.indices, own_count, theirs.indices, their_count,
                                         warp == 0 ? begin : end, lane);
      if (lane == 0) own_splits[warp] = split;
    }
    __syncthreads();
    const unsigned own_begin = own_splits[0], own_end = own_splits[1];
    const unsigned their_begin = begin - own_begin, their_end = end - own_end;
    const bool is_well = own_begin <= own_end && their_begin <= their_end;
    const bool has_before = is_well && own_begin > 0,
               has_behind = is_well && their_end < their_count;
    const int own_here = is_well ? static_cast<int>(own_end - own_begin) : 0;
    const int their_here = is_well ? static_cast<int>(their_end - their_begin) : 0;
    for (int i = thread + (has_before ? 0 : 1); i < own_here + 1; i += kThreads) {
      indices[i] = own.indices[own_begin + i - 1];
      values[i] = own.values[own_begin + i - 1];
    }
    for (int i = thread; i < their_here + (has_behind ? 1 : 0); i += kThreads) {
      indices[own_here + 1 + i] = theirs.indices[their_begin + i];
      values[own_here + 1 + i] = theirs.values[their_begin + i];
    }
    __syncthreads();

    const bool ascends = is_well && Ascends(indices, has_before ? 0 : 1, own_here + 1) &&
                         Ascends(indices + own_here + 1, 0, their_here + (has_behind ? 1 : 0));
    if (!ascends) atomicOr(&flags, static_cast<unsigned>(kMalformed));

    const Part mine = {indices + 1, values + 1, own_here};
    const Part other = {mine.indices + own_here, mine.values + own_here, their_here};
    const int first = min(thread * kItems, own_here + their_here);
    const int steps = min(kItems, own_here + their_here - first);
    const int a = SplitByThread(mine.indices, own_here, other.indices, their_here, first);
    const Made made = MakeSteps(mine, other, a, first - a, steps, has_before, has_behind);

    const auto own_made = static_cast<unsigned>(__popc(made.bits));
    unsigned up_to_own = WarpPrefixSum(own_made, lane);
    if (lane == kWarp - 1) of_warp[warp] = up_to_own;
    __syncthreads();
    unsigned in_tile = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) up_to_own += of_warp[w];
      in_tile += of_warp[w];
    }
    if (warp == 0) {
      const Counts before = LookBack(words, tile, {in_tile, 0});
      if (lane == 0) {
        before_tile = before.above;
        if (end == all) pass->count = before.above + in_tile;
      }
    }
    bool is_finite = true;
    unsigned place = up_to_own - own_made;
#pragma unroll
    for (int step = 0; step < kItems; ++step) {
      if ((made.bits >> step & 1u) == 0) continue;
      indices[place] = made.indices[step];
      values[place] = made.values[step];
      ++place;
      is_finite &= IsFinite(made.values[step]);
      if (digits != nullptr) {
        atomicAdd(histogram + DigitOf(MagnitudeInBlock(made.values[step]), 0), 1u);
      }
    }
    if (!is_finite) atomicOr(&flags, static_cast<unsigned>(kSumNotFinite));
    __syncthreads();
    for (unsigned i = threadIdx.x; i < in_tile; i += kThreads) {
      const std::int64_t to = std::int64_t{before_tile} + i;
      if (to >= out.capacity) continue;
      out.indices[to] = indices[i];
      out.values[to] = values[i];
    }
    if (digits != nullptr) AddCounts<kThreads>(histogram, digits->histograms[0]);
  } else if (thread == 0) {
    Publish(words + tile, TileStatus::kUpToEnd, {0, 0});
  }

  if (thread != 0) return;
  if (flags != 0) atomicOr(&pass->flags, flags);
  __threadfence();  // this block's counts come before it is done,
  if (atomicAdd(&pass->done, 1u) != gridDim.x - 1) return;
  __threadfence();  // and all counts before the last block reads them
  JoinHeaders(own, theirs, out, pass);
}

std::int64_t TilesFor(std::int64_t capacity) { return (capacity + kTile - 1) / kTile; }

}  // namespace

MergeScratch MergeScratch::From(Divider* divider, std::int64_t capacity) {
  return {divider->Take<MergePass>(1), divider->Take<TileWord>(TilesFor(capacity))};
}

void LaunchMerge(const DeviceBlock& own, const DeviceBlock& theirs, const DeviceBlock& out,
                 const MergeScratch& scratch, Digits* digits, cudaStream_t stream) {
  const std::int64_t both = own.capacity + theirs.capacity;
  Require(both <= kMaxBucketNumel, "two blocks to merge must have room for at most ",
          kMaxBucketNumel, " entries, got ", both);
  Require(out.capacity >= both, "out must have room for ", both, " entries, got ", out.capacity);
  MergeKernel<<<static_cast<unsigned>(TilesFor(both)), kThreads, 0, stream>>>(
      own, theirs, out, scratch.pass, scratch.words, digits);
  CheckLaunch("merge two blocks");
}

}  // namespace hvd_sparse::cuda

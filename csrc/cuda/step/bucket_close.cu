/// One block of threads works on each segment. As a rule it has little to do: a segment has too
/// many candidates only when its threshold is refreshed, every 32nd step or so, or by chance. Then
/// the block finds the k largest by itself: that saves many launches, but takes longer the larger
/// the segment is.

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/take_tile.cuh"
#include "csrc/cuda/step/launches.h"
#include "csrc/cuda/step/threshold_learning.cuh"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / kWarp, kItems = 4;

struct CloseShared {
  unsigned histogram[kDigits];
  unsigned number, of_warp[kWarps];
};

/// Returns the cut of the k largest of `count` > k magnitudes. Called by all threads of a block.
__device__ Prefix FindCutAmong(const float* values, unsigned count, unsigned k,
                               unsigned* histogram) {
  Prefix cut = {0, k};
  for (int level = 0; level < kLevels; ++level) {
    ClearCounts<kThreads>(histogram);
    __syncthreads();
    CountLevel<kThreads>(values, count, cut, level, 0, 1, histogram);
    __syncthreads();
    cut = Behind(cut, FindDigit<kThreads>(histogram, cut.rest), level);
  }
  return cut;
}

/// Moves the k largest of a segment's `count` > k candidates to the front; the others return to the
/// residual. Called by all threads of a block.
__device__ void KeepLargest(unsigned k, unsigned count, Index* indices, float* values,
                            float* residual, CloseShared* shared) {
  const Prefix cut = FindCutAmong(values, count, k, shared->histogram);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Counts before_step = {0, 0};
  for (unsigned begin = 0; begin < count; begin += kThreads * kItems) {
    const unsigned first = begin + threadIdx.x * kItems;
    Index index[kItems];
    float value[kItems];
    unsigned own = 0;  // ties in the upper half of the word; at most 2,048 of either kind
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool is_there = first + j < count;
      index[j] = is_there ? indices[first + j] : 0;
      value[j] = is_there ? values[first + j] : 0.0f;
      const std::uint32_t magnitude = MagnitudeInBlock(value[j]);
      if (is_there && magnitude > cut.bits) own += 1u;
      if (is_there && magnitude == cut.bits) own += 1u << 16;
    }
    unsigned before = WarpPrefixSum(own, lane);
    if (lane == kWarp - 1) shared->of_warp[warp] = before;
    __syncthreads();  // also: this step is loaded, and places lie in it or before it
    before -= own;
    unsigned all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += shared->of_warp[w];
      all += shared->of_warp[w];
    }
    Counts at = before_step + Counts{before & 0xffffu, before >> 16};
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (first + j >= count) continue;
      const std::uint32_t magnitude = MagnitudeInBlock(value[j]);
      const bool is_above = magnitude > cut.bits, is_tie = magnitude == cut.bits;
      if (is_above || (is_tie && at.ties < cut.rest)) {
        const unsigned place = at.above + min(at.ties, cut.rest);
        indices[place] = index[j];
        values[place] = value[j];
      } else {
        residual[index[j]] = value[j];
      }
      at = at + Counts{is_above ? 1u : 0u, is_tie ? 1u : 0u};
    }
    before_step = before_step + Counts{all & 0xffffu, all >> 16};
    __syncthreads();
  }
}

/// Returns the smallest magnitude. Called by all threads of a block.
__device__ float SmallestOf(const float* values, unsigned count, unsigned* of_warp) {
  std::uint32_t smallest = 0x7f800000u;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) {
    smallest = min(smallest, MagnitudeInBlock(values[i]));
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    smallest = min(smallest, __shfl_xor_sync(kAllLanes, smallest, distance));
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = smallest;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) smallest = min(smallest, of_warp[w]);
  return BitsFloat(smallest);
}

__device__ DeviceBlockHeader HeaderOf(const BucketPass& pass, const Counts& all,
                                      const Identity& identity) {
  DeviceBlockHeader header;
  header.count = all.above;
  header.above = all.ties;
  header.not_finite = pass.not_finite;
  header.flags = pass.flags;
  if (pass.not_finite > 0) header.verdict = Verdict::BadGradient(identity.rank);
  header.bucket = identity.bucket;
  header.step = identity.step;
  header.asked = identity.asked;
  return header;
}

__global__ void __launch_bounds__(kThreads)
    CloseSegmentsKernel(SelectionArgs work, DeviceBlock block, Identity identity) {
  __shared__ CloseShared shared;
  const unsigned s = NextNumber(&work.pass->begun_segments, &shared.number);
  const SegmentPlace place = work.bucket.segments[s];
  const ThresholdControl control = work.bucket.controls[s];
  SegmentPass* const pass = work.segments + s;
  const bool missed = pass->HasMissed(control);
  const unsigned above = pass->above, taken = pass->taken;
  Index* const indices = work.indices + place.candidates;
  float* const values = work.values + place.candidates;
  const bool is_too_many = taken > control.most;
  if (is_too_many) KeepLargest(control.k, taken, indices, values, work.residual, &shared);
  const unsigned size = is_too_many ? control.k : taken;
  const float smallest = size == control.k ? SmallestOf(values, size, shared.of_warp) : 0.0f;
  if (threadIdx.x >= kWarp) return;

  // Blocks of later segments wait for the first count. The second one is summed up for the header.
  const Counts before = LookBack(work.segment_words, s, {size, above});
  if (threadIdx.x == 0) {
    if (is_too_many) pass->taken = size;  // else it is the same, and other warps may still read it
    pass->start = before.above;
    if (s + 1 == work.bucket.segment_count) {
      *block.header = HeaderOf(*work.pass, before + Counts{size, above}, identity);
    }
  }
  LearnByWarp(control, {work.tried[s], above, missed, values, size, smallest},
              work.states + place.number);
}

__global__ void __launch_bounds__(kTakeThreads)
    GatherKernel(SelectionArgs work, DeviceBlock block, unsigned k, Digits* digits) {
  __shared__ unsigned histogram[kDigits];
  const Chunk chunk = work.bucket.chunks[blockIdx.x];
  const SegmentPass pass = work.segments[chunk.segment];
  const auto begin = static_cast<unsigned>(chunk.begin);
  if (begin >= pass.taken) return;
  const bool counts = block.CountOnDevice() > k;
  if (counts) ClearCounts<kTakeThreads>(histogram);
  __syncthreads();
  const Index candidates = work.bucket.segments[chunk.segment].candidates;
  for (unsigned i = threadIdx.x; i < kChunkEntries; i += kTakeThreads) {
    const unsigned n = begin + i;
    const std::int64_t to = std::int64_t{pass.start} + n;
    if (n >= pass.taken || to >= block.capacity) continue;
    const float value = work.values[candidates + n];
    block.indices[to] = work.indices[candidates + n];
    block.values[to] = value;
    if (counts) atomicAdd(histogram + DigitOf(MagnitudeInBlock(value), 0), 1u);
  }
  __syncthreads();
  if (counts) AddCounts<kTakeThreads>(histogram, digits->histograms[0]);
}

}  // namespace

void LaunchCloseSegments(const SelectionArgs& work, const DeviceBlock& block,
                         const Identity& identity, cudaStream_t stream) {
  CloseSegmentsKernel<<<work.bucket.segment_count, kThreads, 0, stream>>>(work, block, identity);
  CheckLaunch("trim segments and learn their thresholds");
}

void LaunchGather(const SelectionArgs& work, const DeviceBlock& block, std::int64_t k,
                  Digits* digits, cudaStream_t stream) {
  GatherKernel<<<work.bucket.chunk_count, kTakeThreads, 0, stream>>>(
      work, block, static_cast<unsigned>(k), digits);
  CheckLaunch("gather the entries of all segments");
}

}  // namespace hvd_sparse::cuda

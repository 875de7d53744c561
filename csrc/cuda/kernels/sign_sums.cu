/// A radix select for each sign, both in the same launches: blocks of threads with even numbers
/// work on positive values, those with odd numbers on negative ones. Each adds up a part of the
/// magnitudes; the CPU adds the parts.

#include <algorithm>
#include <cmath>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kSigns = 2;
constexpr int kTurn = kThreads * kCountedAtATime;

/// Blocks for each sign: one for each multiprocessor of large devices.
constexpr std::int64_t kMostBlocks = 128;

__device__ OneSignEntries SignOf(unsigned number) { return {number == 0 ? 0 : 0x80000000u}; }

__global__ void __launch_bounds__(kThreads)
    CountSignsKernel(const float* values, unsigned count, unsigned k, int level, Digits* digits) {
  __shared__ unsigned histogram[kDigits];
  const unsigned sign = blockIdx.x % kSigns, number = blockIdx.x / kSigns;
  Digits* const own = digits + sign;
  Prefix prefix = {0, k};
  if (level > 0) prefix = FindLevel<kThreads>(own, level - 1, k, number == 0);
  ClearCounts<kThreads>(histogram);
  __syncthreads();
  CountLevel<kThreads>(values, count, prefix, level, number, gridDim.x / kSigns, histogram,
                       SignOf(sign));
  __syncthreads();
  AddCounts<kThreads>(histogram, own->histograms[level]);
}

/// The magnitudes beyond a cut, as far as one block of threads has added them up.
struct Part {
  double sum;
  unsigned above, least;  ///< their number, and the bits of the smallest
};

__device__ Part operator+(const Part& a, const Part& b) {
  return {a.sum + b.sum, a.above + b.above, min(a.least, b.least)};
}

__device__ Part WarpSumOf(Part part) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Part other = {__shfl_xor_sync(kAllLanes, part.sum, distance),
                        __shfl_xor_sync(kAllLanes, part.above, distance),
                        __shfl_xor_sync(kAllLanes, part.least, distance)};
    part = part + other;
  }
  return part;
}

__global__ void __launch_bounds__(kThreads)
    AddUpSignsKernel(const float* values, unsigned count, unsigned k, Digits* digits, Part* parts) {
  __shared__ Part of_warp[kWarps];
  const unsigned sign = blockIdx.x % kSigns, number = blockIdx.x / kSigns;
  const Prefix cut = FindLevel<kThreads>(digits + sign, kLevels - 1, k, number == 0);
  const OneSignEntries which = SignOf(sign);
  Part own = {0, 0, 0x7f800000u};
  for (unsigned begin = number * kTurn; begin < count; begin += gridDim.x / kSigns * kTurn) {
    float of_turn[kCountedAtATime];
#pragma unroll
    for (int j = 0; j < kCountedAtATime; ++j) {
      const unsigned i = begin + threadIdx.x + static_cast<unsigned>(j * kThreads);
      of_turn[j] = i < count ? values[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kCountedAtATime; ++j) {
      const std::uint32_t magnitude = MagnitudeInBlock(of_turn[j]);
      if (magnitude <= cut.bits || !which.Has(of_turn[j])) continue;
      own = own + Part{static_cast<double>(BitsFloat(magnitude)), 1, magnitude};
    }
  }
  own = WarpSumOf(own);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) own = own + of_warp[w];
  parts[blockIdx.x] = own;
}

__global__ void __launch_bounds__(kThreads)
    SmallestKernel(const float* values, unsigned count, unsigned* complement) {
  unsigned smallest = 0x7f800000u;
  for (unsigned begin = blockIdx.x * kTurn; begin < count; begin += gridDim.x * kTurn) {
#pragma unroll
    for (int j = 0; j < kCountedAtATime; ++j) {
      const unsigned i = begin + threadIdx.x + static_cast<unsigned>(j * kThreads);
      if (i < count) smallest = min(smallest, MagnitudeInBlock(values[i]));
    }
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    smallest = min(smallest, __shfl_xor_sync(kAllLanes, smallest, distance));
  }
  if (threadIdx.x % kWarp == 0) atomicMax(complement, ~smallest);
}

unsigned BlocksFor(std::int64_t count) {
  return static_cast<unsigned>(
      std::clamp((count + kTurn - 1) / kTurn, std::int64_t{1}, kMostBlocks));
}

/// Returns the group up to a cut, from the parts of its sum.
SignSum SumOf(bool negative, const Prefix& cut, const Part* parts, unsigned blocks) {
  SignSum result{{negative, BitsFloat(cut.bits)}};
  unsigned above = 0;
  std::uint32_t least = FloatBits(INFINITY);
  for (unsigned number = 0; number < blocks; ++number) {
    const Part& part = parts[number * kSigns + (negative ? 1 : 0)];
    result.sum += part.sum;
    above += part.above;
    least = std::min(least, part.least);
  }
  if (cut.bits > 0) {  // else there are no more than k
    result.group.ties = cut.rest;
    result.sum += static_cast<double>(cut.rest) * double{result.group.cut};
    least = cut.bits;
  }
  result.group.count = above + result.group.ties;
  result.least = BitsFloat(least);
  // Either order of adding errs by no more than count - 1 roundings of the sum.
  constexpr double kRounding = 1.0 / (std::int64_t{1} << 52);
  result.error = 2 * kRounding * static_cast<double>(result.group.count) * result.sum;
  return result;
}

}  // namespace

float SmallestMagnitude(const float* values, std::int64_t count, Work* work) {
  unsigned* const complement = work->Zeros<unsigned>(1);
  unsigned* const fetched = work->Staged<unsigned>(1);
  SmallestKernel<<<BlocksFor(count), kThreads, 0, work->stream()>>>(
      values, static_cast<unsigned>(count), complement);
  CheckLaunch("find the smallest candidate");
  work->Fetch(complement, 1, fetched);
  work->Finish();
  return BitsFloat(~*fetched);
}

SignSums LargestOfSigns(const float* values, std::int64_t count, std::int64_t k, Work* work) {
  const auto size = static_cast<unsigned>(count), wanted = static_cast<unsigned>(k);
  const unsigned blocks = BlocksFor(count), both = blocks * kSigns;
  Digits* const digits = work->Zeros<Digits>(kSigns);
  Part* const parts = work->Scratch<Part>(both);
  Part* const fetched = work->Staged<Part>(both);
  Prefix* const cuts = work->Staged<Prefix>(kSigns);
  for (int level = 0; level < kLevels; ++level) {
    CountSignsKernel<<<both, kThreads, 0, work->stream()>>>(values, size, wanted, level, digits);
    CheckLaunch("count the digits of either sign");
  }
  AddUpSignsKernel<<<both, kThreads, 0, work->stream()>>>(values, size, wanted, digits, parts);
  CheckLaunch("add up the candidates of either sign");
  work->Fetch(parts, both, fetched);
  for (int sign = 0; sign < kSigns; ++sign) {
    work->Fetch(&digits[sign].found[kLevels - 1], 1, cuts + sign);
  }
  work->Finish();
  return {SumOf(false, cuts[0], fetched, blocks), SumOf(true, cuts[1], fetched, blocks)};
}

}  // namespace hvd_sparse::cuda

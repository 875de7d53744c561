/// The digits of a radix select whose result stays on the device.
///
/// Magnitudes have three digits, the most significant one first, as in csrc/kernels/radix.h. Each
/// pass counts one of them. Every block of the next kernel then finds the digit of the k-th largest
/// magnitude for itself: reading 2,048 counts takes less time than one more kernel.

#pragma once

#include <cstdint>

#include "csrc/cuda/base/entries.cuh"
#include "csrc/kernels/radix.h"

namespace hvd_sparse::cuda {

constexpr int kLevels = 3, kDigits = 1 << cpu::kUpperBits;

/// Returns how many bits lie to the right of the digit of `level`.
__device__ inline int ShiftOf(int level) { return (kLevels - 1 - level) * cpu::kLowerBits; }

/// Returns a magnitude's digit of `level`: the bits that follow those of the levels before.
__device__ inline unsigned DigitOf(std::uint32_t magnitude, int level) {
  const std::uint32_t rest = magnitude >> ShiftOf(level);
  return level == 0 ? rest : rest & cpu::kLowerMask;
}

/// The result of a radix select after some levels.
struct Prefix {
  std::uint32_t bits;  ///< the leading bits of the k-th largest magnitude
  std::uint32_t rest;  ///< it is the rest-th largest of those that begin with these bits
};

/// State of a radix select; all zero at first.
struct Digits {
  unsigned histograms[kLevels][kDigits];
  Prefix found[kLevels];
};

/// Returns the digit of the k-th largest entry of a histogram, and k less the entries with larger
/// digits; digit 0 if there are fewer than k entries. Called by all `Threads` threads of a block.
/// Two calls need a barrier between them: a result is read from shared memory that the next call
/// writes.
template <int Threads>
__device__ Prefix FindDigit(const unsigned* histogram, unsigned k) {
  constexpr int kOwn = kDigits / Threads;
  __shared__ unsigned of_warp[Threads / kWarp];
  __shared__ Prefix found;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int top = kDigits - 1 - thread * kOwn;  // the first threads have the largest digits
  unsigned own = 0;
  for (int j = 0; j < kOwn; ++j) own += histogram[top - j];
  unsigned up_to_own = WarpPrefixSum(own, lane);
  if (lane == kWarp - 1) of_warp[warp] = up_to_own;
  if (thread == 0) found = {0, k};
  __syncthreads();
  for (int w = 0; w < warp; ++w) up_to_own += of_warp[w];
  const unsigned before = up_to_own - own;
  if (before < k && k <= up_to_own) {
    unsigned rest = k - before;
    int digit = top;
    while (histogram[digit] < rest) rest -= histogram[digit--];
    found = {static_cast<std::uint32_t>(digit), rest};
  }
  __syncthreads();
  return found;
}

/// Returns `before` extended by the digit of `level`.
__device__ inline Prefix Behind(const Prefix& before, const Prefix& digit, int level) {
  const int bits = level == 0 ? cpu::kUpperBits : cpu::kLowerBits;
  return {before.bits << bits | digit.bits, digit.rest};
}

/// Finds the digit of `level`, whose histogram is complete, and returns the prefix that ends with
/// it. The one block with `notes` stores it for the next levels.
template <int Threads>
__device__ Prefix FindLevel(Digits* digits, int level, unsigned k, bool notes) {
  const Prefix before = level == 0 ? Prefix{0, k} : digits->found[level - 1];
  const Prefix digit = FindDigit<Threads>(digits->histograms[level], before.rest);
  const Prefix found = Behind(before, digit, level);
  if (notes && threadIdx.x == 0) digits->found[level] = found;
  return found;
}

/// ClearCounts clears a block's histogram in shared memory, AddCounts adds it to that of the
/// device.
template <int Threads>
__device__ void ClearCounts(unsigned* counts) {
  for (unsigned d = threadIdx.x; d < kDigits; d += Threads) counts[d] = 0;
}
template <int Threads>
__device__ void AddCounts(const unsigned* counts, unsigned* histogram) {
  for (unsigned d = threadIdx.x; d < kDigits; d += Threads) {
    if (counts[d] > 0) atomicAdd(histogram + d, counts[d]);
  }
}

/// Returns the bits of |x|, which order entries of a block. A NaN, which only a sum can be, is
/// larger than all others.
__device__ inline std::uint32_t MagnitudeInBlock(float x) { return FloatBits(x) & 0x7fffffffu; }

/// Orders the entries of a block by magnitude.
struct AllEntries {
  __device__ bool Has(float /*x*/) const { return true; }
};

/// Orders the entries of one sign by magnitude, and leaves the others out.
struct OneSignEntries {
  std::uint32_t sign;  ///< 0x80000000 if they are negative, else 0

  __device__ bool Has(float x) const { return (FloatBits(x) & 0x80000000u) == sign; }
};

/// Entries of a block that a thread loads before it uses any of them. Each use ends with an atomic,
/// and no compiler moves a load across that, so every single load would be waited for.
constexpr int kCountedAtATime = 8;

/// Counts the digits of `level` in a histogram in shared memory, for those magnitudes of a block
/// that begin with `prefix` and belong to `which`. The entries are split among `blocks` blocks of
/// threads, of which this one is `number`. Called by all its threads.
template <int Threads, typename Which = AllEntries>
__device__ void CountLevel(const float* values, unsigned count, const Prefix& prefix, int level,
                           unsigned number, unsigned blocks, unsigned* histogram,
                           const Which& which = {}) {
  constexpr unsigned kTurn = kCountedAtATime * Threads;
  const int above = level == 0 ? 31 : ShiftOf(level - 1);
  for (unsigned begin = number * kTurn; begin < count; begin += blocks * kTurn) {
    const unsigned first = begin + threadIdx.x;
    float of_turn[kCountedAtATime];
#pragma unroll
    for (int j = 0; j < kCountedAtATime; ++j) {
      const unsigned i = first + static_cast<unsigned>(j * Threads);
      of_turn[j] = i < count ? values[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kCountedAtATime; ++j) {
      const unsigned i = first + static_cast<unsigned>(j * Threads);
      const std::uint32_t magnitude = MagnitudeInBlock(of_turn[j]);
      if (i >= count || magnitude >> above != prefix.bits || !which.Has(of_turn[j])) continue;
      atomicAdd(histogram + DigitOf(magnitude, level), 1u);
    }
  }
}

}  // namespace hvd_sparse::cuda

/// The cut of the k largest magnitudes, found digit by digit as in csrc/kernels/cpu_top_k.cc, with
/// the histograms made on the device and read on the CPU.
///
/// A block counts in shared memory. Neighbouring lanes often have equal digits and would wait for
/// each other, so they take turns on several histograms, which are added up in the end.

#include <algorithm>

#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/radix.h"

namespace hvd_sparse::cuda {
namespace {

using cpu::Histogram;
using cpu::kLowerBits;

constexpr int kThreads = 512, kTurns = 4, kDigits = 1 << cpu::kUpperBits;

/// Few blocks: each one adds its whole histogram to that of the device.
constexpr std::int64_t kMostBlocks = 1024;

/// The magnitudes to count, and the digit to count them by.
struct Digit {
  std::uint32_t prefix;  ///< all bits above those of the digit
  int prefix_shift, shift;
};

__global__ void __launch_bounds__(kThreads)
    CountDigitsKernel(Span<const float> dense, bool is_aligned, Digit digit, unsigned* histogram) {
  __shared__ unsigned turns[kTurns * kDigits];  // one histogram behind the other
  for (unsigned i = threadIdx.x; i < kTurns * kDigits; i += kThreads) turns[i] = 0;
  __syncthreads();
  unsigned* const own = turns + threadIdx.x % kTurns * kDigits;
  const unsigned mask = (1u << (digit.prefix_shift - digit.shift)) - 1;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  for (; i < dense.size; i += step) {
    const std::int64_t left = dense.size - i;
    const Four<float> entries = LoadFour(dense.data + i, left, is_aligned);
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t magnitude = Magnitude(entries.at[j]);
      if (j >= left || magnitude >> digit.prefix_shift != digit.prefix) continue;
      atomicAdd(own + (magnitude >> digit.shift & mask), 1u);
    }
  }
  __syncthreads();
  for (unsigned d = threadIdx.x; d < kDigits; d += kThreads) {
    unsigned count = 0;
    for (unsigned turn = 0; turn < kTurns; ++turn) count += turns[turn * kDigits + d];
    if (count > 0) atomicAdd(histogram + d, count);
  }
}

Histogram CountDigits(Span<const float> dense, const Digit& digit, Work* work) {
  unsigned* const histogram = work->Zeros<unsigned>(kDigits);
  unsigned* const counted = work->Staged<unsigned>(kDigits);
  const std::int64_t blocks = (dense.size + kThreads * 4 - 1) / (kThreads * 4);
  CountDigitsKernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0,
                      work->stream()>>>(dense, IsAligned(dense.data), digit, histogram);
  CheckLaunch("count the digits of magnitudes");
  work->Fetch(histogram, kDigits, counted);
  work->Finish();
  Histogram result;
  std::copy_n(counted, kDigits, result.begin());
  return result;
}

}  // namespace

TopKCut FindTopK(Span<const float> dense, std::int64_t k, Work* work) {
  constexpr int kAllBits = cpu::kUpperBits + 2 * kLowerBits;
  std::int64_t rest = k;
  std::uint32_t prefix =
      cpu::FindDigit(CountDigits(dense, {0, kAllBits, 2 * kLowerBits}, work), &rest);
  for (int shift = kLowerBits; shift >= 0; shift -= kLowerBits) {
    const Digit digit{prefix, shift + kLowerBits, shift};
    prefix = prefix << kLowerBits | cpu::FindDigit(CountDigits(dense, digit, work), &rest);
  }
  if (prefix == 0) return {};  // fewer than k non-zeros: keeps all of them, and no zero
  return {BitsFloat(prefix), rest};
}

}  // namespace hvd_sparse::cuda

/// Counts and moments.

#include <algorithm>
#include <cmath>

#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

/// Enough blocks to fill any device of today.
constexpr std::int64_t kMostBlocks = 2048;

__global__ void __launch_bounds__(kThreads)
    CountAboveKernel(Span<const float> dense, bool is_aligned, float threshold, unsigned* above) {
  unsigned count = 0;
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  for (; i < dense.size; i += step) {
    const std::int64_t left = dense.size - i;
    const Four<float> entries = LoadFour(dense.data + i, left, is_aligned);
    for (int j = 0; j < 4; ++j) count += j < left && fabsf(entries.at[j]) > threshold ? 1 : 0;
  }
  count = WarpSum(count);
  if (threadIdx.x % kWarp == 0 && count > 0) atomicAdd(above, count);
}

struct Sums {
  double sum, squares;
};

/// Entries that a block adds up, on every device.
constexpr std::int64_t kPart = std::int64_t{1} << 15;

__global__ void __launch_bounds__(kThreads) AddUpKernel(Span<const float> dense, Sums* of_part) {
  __shared__ Sums of_warp[kWarps];
  Sums own = {0, 0};
  const std::int64_t begin = std::int64_t{blockIdx.x} * kPart;
  const std::int64_t end = min(begin + kPart, static_cast<std::int64_t>(dense.size));
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double x = dense.data[i];
    own.sum += x;
    own.squares = __dadd_rn(own.squares, __dmul_rn(x, x));
  }
  own = {WarpSum(own.sum), WarpSum(own.squares)};
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kWarps; ++w) {
    own.sum += of_warp[w].sum;
    own.squares += of_warp[w].squares;
  }
  of_part[blockIdx.x] = own;
}

}  // namespace

std::int64_t CountAbove(Span<const float> dense, float threshold, Work* work) {
  const std::int64_t blocks = (dense.size + kThreads * 4 - 1) / (kThreads * 4);
  if (blocks == 0) return 0;
  unsigned* const above = work->Zeros<unsigned>(1);
  unsigned* const counted = work->Staged<unsigned>(1);
  CountAboveKernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0,
                     work->stream()>>>(dense, IsAligned(dense.data), threshold, above);
  CheckLaunch("count the entries above a threshold");
  work->Fetch(above, 1, counted);
  work->Finish();
  return *counted;
}

Moments ComputeMoments(Span<const float> dense, Work* work) {
  if (dense.size == 0) return {};
  const std::int64_t parts = (dense.size + kPart - 1) / kPart;
  Sums* const of_part = work->Scratch<Sums>(parts);
  Sums* const sums = work->Staged<Sums>(parts);
  AddUpKernel<<<static_cast<unsigned>(parts), kThreads, 0, work->stream()>>>(dense, of_part);
  CheckLaunch("add up the entries of an array");
  work->Fetch(of_part, parts, sums);
  work->Finish();
  double sum = 0, squares = 0;
  for (std::int64_t part = 0; part < parts; ++part) {
    sum += sums[part].sum;
    squares += sums[part].squares;
  }
  const double n = static_cast<double>(dense.size), mean = sum / n;
  return {mean, std::sqrt(std::max(squares / n - mean * mean, 0.0))};
}

}  // namespace hvd_sparse::cuda

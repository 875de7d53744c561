/// A radix select over the residual as in top_k.cu, whose digits stay on the device. All launches
/// are made whether or not they are needed, and end at once where they are not: only the device
/// knows.

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/cuda/check.h"
#include "csrc/cuda/digits.cuh"
#include "csrc/cuda/residual_top_k.h"

namespace hvd_sparse::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1024;  // that fill any device of today

__global__ void __launch_bounds__(kThreads)
    PutBackKernel(Missed missed, Taken taken, Span<float> residual) {
  if (!missed.OnDevice()) return;
  const std::int64_t above = missed.totals->above;
  const std::int64_t count = min(above, taken.room);
  const std::int64_t n = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (n < count) residual.data[taken.indices[n] - taken.offset] = taken.values[n];
}

/// Counts the digits of one level, after finding that of the level before.
__global__ void __launch_bounds__(kThreads)
    CountResidualKernel(Missed missed, Span<const float> residual, bool is_aligned, unsigned k,
                        int level, Digits* digits) {
  __shared__ unsigned histogram[kDigits];
  if (!missed.OnDevice()) return;
  Prefix prefix = {0, k};
  if (level > 0) prefix = FindLevel<kThreads>(digits, level - 1, k, blockIdx.x == 0);
  ClearCounts<kThreads>(histogram);
  __syncthreads();
  const int above = level == 0 ? 31 : ShiftOf(level - 1);
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads * 4;
  std::int64_t i = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * 4;
  for (; i < residual.size; i += step) {
    const std::int64_t left = residual.size - i;
    const Four<float> entries = LoadFour(residual.data + i, left, is_aligned);
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t magnitude = Magnitude(entries.at[j]);
      if (j >= left || magnitude >> above != prefix.bits) continue;
      atomicAdd(histogram + DigitOf(magnitude, level), 1u);
    }
  }
  __syncthreads();
  AddCounts<kThreads>(histogram, digits->histograms[level]);
}

__global__ void __launch_bounds__(kThreads)
    FindCutKernel(Missed missed, unsigned k, Digits* digits) {
  if (missed.OnDevice()) FindLevel<kThreads>(digits, kLevels - 1, k, true);
}

/// By one warp.
__global__ void SealKernel(DeviceBlock block, Identity identity, const Totals* pass, Missed missed,
                           const Totals* top_k, const Prefix* cut) {
  if (threadIdx.x != 0) return;
  unsigned count = pass->above;
  if (top_k != nullptr && missed.OnDevice()) count = top_k->above + min(top_k->ties, cut->rest);
  DeviceBlockHeader header;
  header.count = min(count, static_cast<unsigned>(block.capacity));
  header.above = pass->above;
  header.not_finite = pass->not_finite;
  const bool is_too_many = missed.totals != nullptr && pass->above > missed.most;
  header.flags = is_too_many || pass->above > block.capacity ? +kOverflow : 0u;
  header.bad_rank = pass->not_finite > 0 ? identity.rank : kNoRank;
  header.bucket = identity.bucket;
  header.step = identity.step;
  header.asked = identity.asked;
  *block.header = header;
}

unsigned BlocksFor(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>(std::max<std::int64_t>((count + each - 1) / each, 1));
}

}  // namespace

ResidualTopKScratch ResidualTopKScratch::From(Divider* divider, std::int64_t size) {
  return {divider->Take<Digits>(1), TakeScratch::From(divider, size)};
}

const Prefix* ResidualTopKScratch::cut() const { return &digits->found[kLevels - 1]; }

void LaunchTopKIfMissed(Span<float> residual, std::int64_t k, const Missed& missed,
                        const Taken& taken, const ResidualTopKScratch& scratch,
                        cudaStream_t stream) {
  const std::int64_t most = std::min(residual.size, taken.room);
  Require(1 <= k && k <= most, "k must lie in [1, ", most, "], got ", k);
  PutBackKernel<<<BlocksFor(taken.room, kThreads), kThreads, 0, stream>>>(missed, taken, residual);
  CheckLaunch("put back what a pass took in vain");
  const std::int64_t blocks =
      std::min<std::int64_t>(BlocksFor(residual.size, kThreads * 4), kMostBlocks);
  for (int level = 0; level < kLevels; ++level) {
    CountResidualKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        missed, residual, IsAligned(residual.data), static_cast<unsigned>(k), level,
        scratch.digits);
    CheckLaunch("count the digits of a residual");
  }
  FindCutKernel<<<1, kThreads, 0, stream>>>(missed, static_cast<unsigned>(k), scratch.digits);
  CheckLaunch("find where the largest entries end");
  LaunchTakeCut(residual, scratch.cut(), missed, taken, scratch.take, stream);
}

void LaunchSeal(const DeviceBlock& block, const Identity& identity, const TakeScratch& pass,
                const Missed& missed, const ResidualTopKScratch* top_k, cudaStream_t stream) {
  const Totals* const totals = top_k == nullptr ? nullptr : top_k->take.totals();
  const Prefix* const cut = top_k == nullptr ? nullptr : top_k->cut();
  SealKernel<<<1, kWarp, 0, stream>>>(block, identity, pass.totals(), missed, totals, cut);
  CheckLaunch("write the header of a block");
}

}  // namespace hvd_sparse::cuda

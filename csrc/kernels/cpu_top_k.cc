/// Exact top-k of a dense array: a radix select over the bits of |x|.
///
/// Positive floats order like their bits, so the k-th largest magnitude is found digit by digit: a
/// histogram of the upper 11 bits gives the bin in which it lies, one of the next 10 bits of that
/// bin's entries narrows it down, and one of the last 10 bits determines it. This takes three
/// reads, no sort and no memory.

#include <algorithm>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/hits.h"
#include "csrc/kernels/radix.h"
#include "csrc/kernels/stretches.h"

namespace hvd_sparse::cpu {
namespace {

/// Returns the bits of |x|, or 0 for NaN, which is never selected.
HVD_SPARSE_INLINE std::uint32_t Magnitude(float x) {
  const std::uint32_t bits = FloatBits(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0 : bits;
}

struct AtLeast {
  std::uint32_t least;
  HVD_SPARSE_INLINE bool operator()(float x) const { return Magnitude(x) >= least; }
};

struct StartsWith {
  std::uint32_t prefix;
  int shift;
  HVD_SPARSE_INLINE bool operator()(float x) const { return Magnitude(x) >> shift == prefix; }
};

/// Counts the upper digits of all magnitudes of at least `floor`.
HVD_SPARSE_CLONES
void CountUpperDigits(const float* dense, std::int64_t size, std::uint32_t floor, Turns* turns) {
  ForEachHit(dense, size, AtLeast{floor}, [&](std::int64_t i) __attribute__((always_inline)) {
    ++(*turns)[i & 3][Magnitude(dense[i]) >> (2 * kLowerBits)];
  });
}

/// Counts the digit at `shift` of the magnitudes whose bits above it are `prefix`.
HVD_SPARSE_CLONES
void CountLowerDigits(const float* dense, std::int64_t size, std::uint32_t prefix, int shift,
                      Histogram* histogram) {
  const StartsWith is_hit{prefix, shift + kLowerBits};
  ForEachHit(dense, size, is_hit, [&](std::int64_t i) __attribute__((always_inline)) {
    ++(*histogram)[(Magnitude(dense[i]) >> shift) & kLowerMask];
  });
}

HVD_SPARSE_CLONES
std::int64_t TakeLargest(float* residual, std::int64_t size, std::uint32_t last, std::int64_t ties,
                         Index offset, Room room) {
  const std::uint32_t least = std::max(last, 1u);  // zeros are never taken
  std::int64_t taken = 0;
  ForEachHit(residual, size, AtLeast{least}, [&](std::int64_t i) __attribute__((always_inline)) {
    if (taken >= room.size || (Magnitude(residual[i]) == last && ties-- <= 0)) return;
    room.indices[taken] = offset + static_cast<Index>(i);
    room.values[taken++] = residual[i];
    residual[i] = 0;
  });
  return taken;
}

/// Returns a magnitude, from a sample, that most likely lies below the k-th largest; 0 for arrays
/// too small to sample.
std::uint32_t LikelyFloor(Span<const float> dense, std::int64_t k) {
  constexpr std::int64_t kSampleK = 32;
  const std::int64_t size = std::max<std::int64_t>(1 << 12, dense.size / k * kSampleK);
  if (size > dense.size / 4) return 0;
  thread_local std::vector<float> sample;
  sample.resize(static_cast<std::size_t>(SampleSize(dense.size, size)));
  ForEachStretch(dense.size, size, 0,
                 [&](std::int64_t begin, std::int64_t length, std::int64_t at) {
                   std::copy_n(dense.data + begin, length, sample.data() + at);
                 });
  const double fraction = static_cast<double>(size) / static_cast<double>(dense.size);
  const auto rank = static_cast<std::int64_t>(2.0 * fraction * static_cast<double>(k)) + 1;
  return FloatBits(CpuKernels().FindTopK(sample, std::min(rank, size)).magnitude);
}

}  // namespace

TopKCut KernelsOfCpu::FindTopK(Span<const float> dense, std::int64_t k) const {
  // Nearly all entries are far below the floor and are skipped. If the floor is too high, all are
  // counted.
  std::int64_t rest = k;
  std::uint32_t prefix = 0;
  for (std::uint32_t floor = LikelyFloor(dense, k);; floor = 0) {
    Turns turns{};
    CountUpperDigits(dense.data, dense.size, floor, &turns);
    rest = k;
    prefix = FindDigit(AddUp(&turns), &rest);
    if (floor == 0 || prefix != 0) break;
  }
  for (int shift = kLowerBits; shift >= 0; shift -= kLowerBits) {
    Histogram histogram{};
    CountLowerDigits(dense.data, dense.size, prefix, shift, &histogram);
    prefix = prefix << kLowerBits | FindDigit(histogram, &rest);
  }
  if (prefix == 0) return {};  // fewer than k non-zeros: keeps all of them, and no zero
  return {BitsFloat(prefix), rest};
}

void CpuCandidates::TakeCut(Span<float> residual, TopKCut cut) {
  count_ += TakeLargest(residual.data, residual.size, FloatBits(cut.magnitude), cut.ties,
                        OffsetIn(bucket_, residual), Free());
}

}  // namespace hvd_sparse::cpu

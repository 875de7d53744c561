/// Passes over dense arrays on the CPU: plain loops that the compiler vectorises, memory-bound at
/// any density.

#include <algorithm>
#include <cmath>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/hits.h"

namespace hvd_sparse::cpu {
namespace {

/// Entries per 32-bit counter, which vectorises twice as well as a 64-bit one.
constexpr std::int64_t kRun = std::int64_t{1} << 20;

struct Sums {
  double sum = 0, squares = 0;
};

/// Adds up entries and squares, always in 16 lanes, so that every instruction set gives the same
/// bits.
HVD_SPARSE_CLONES
Sums AddUp(const float* dense, std::int64_t size) {
  double sums[16] = {}, squares[16] = {};
  std::int64_t i = 0;
  for (; i + 16 <= size; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const double x = dense[i + lane];
      sums[lane] += x;
      squares[lane] += x * x;
    }
  }
  Sums total;
  for (; i < size; ++i) {
    const double x = dense[i];
    total.sum += x;
    total.squares += x * x;
  }
  for (int lane = 0; lane < 16; ++lane) {
    total.sum += sums[lane];
    total.squares += squares[lane];
  }
  return total;
}

/// True if |x| > threshold, which NaN never is.
struct Above {
  float threshold;
  HVD_SPARSE_INLINE bool operator()(float x) const { return std::fabs(x) > threshold; }
};

HVD_SPARSE_CLONES
std::int64_t Count(const float* dense, std::int64_t size, float threshold) {
  std::int64_t count = 0;
  for (std::int64_t start = 0; start < size; start += kRun) {
    count += CountHits(dense + start, std::min(kRun, size - start), Above{threshold});
  }
  return count;
}

/// Returns true if all numbers are finite: not all bits of the exponent are set. Blocks have no
/// branches inside, so that the loop is vectorised.
template <typename Bits>
bool AllFinite(const Bits* bits, std::int64_t numel, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, numel);
    int found = 0;
    for (std::int64_t i = begin; i < end; ++i) found |= (bits[i] & exponent) == exponent;
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

Moments KernelsOfCpu::ComputeMoments(Span<const float> dense) const {
  if (dense.size == 0) return {};
  const Sums sums = AddUp(dense.data, dense.size);
  const double mean = sums.sum / static_cast<double>(dense.size);
  const double variance = sums.squares / static_cast<double>(dense.size) - mean * mean;
  return {mean, std::sqrt(std::max(variance, 0.0))};
}

std::int64_t KernelsOfCpu::CountAbove(Span<const float> dense, float threshold) const {
  return Count(dense.data, dense.size, threshold);
}

bool AllFinite(GradView gradient) {
  const auto are_finite = [&](auto exponent) {
    return AllFinite(static_cast<const decltype(exponent)*>(gradient.data), gradient.numel,
                     exponent);
  };
  switch (gradient.dtype) {
    case DType::kFloat32:
      return are_finite(std::uint32_t{0x7f800000});
    case DType::kFloat64:
      return are_finite(std::uint64_t{0x7ff0000000000000});
    case DType::kFloat16:
      return are_finite(std::uint16_t{0x7c00});
    case DType::kBFloat16:
      return are_finite(std::uint16_t{0x7f80});
  }
  return false;
}

}  // namespace hvd_sparse::cpu

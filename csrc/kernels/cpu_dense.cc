/// Passes over dense arrays on the CPU: plain loops that the compiler vectorises, memory-bound at
/// any density.

#include "csrc/kernels/cpu_dense.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/clones.h"
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

}  // namespace

Moments ComputeMoments(Span<const float> dense) {
  if (dense.size == 0) return {};
  const Sums sums = AddUp(dense.data, dense.size);
  const double mean = sums.sum / static_cast<double>(dense.size);
  const double variance = sums.squares / static_cast<double>(dense.size) - mean * mean;
  return {mean, std::sqrt(std::max(variance, 0.0))};
}

std::int64_t CountAbove(Span<const float> dense, float threshold) {
  return Count(dense.data, dense.size, threshold);
}

}  // namespace hvd_sparse::cpu

/// Dense passes on the CPU: plain loops that the compiler vectorises, memory-bound at any density.

#include "csrc/kernels/cpu_dense.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/hits.h"

namespace hvd_sparse::cpu {
namespace {

/// Entries per 32-bit counter, which vectorises twice as well as a 64-bit one.
constexpr std::int64_t kRun = std::int64_t{1} << 20;

HVD_SPARSE_INLINE bool IsFinite(float value) { return std::fabs(value) <= FLT_MAX; }

template <typename T>
HVD_SPARSE_INLINE std::int64_t AccumulateAs(const T* __restrict grad, std::int64_t size,
                                            float decay, float scale, float* __restrict residual) {
  std::int64_t bad = 0;
  for (std::int64_t start = 0; start < size; start += kRun) {
    const std::int64_t end = std::min(start + kRun, size);
    std::int32_t bad_in_run = 0;
    for (std::int64_t i = start; i < end; ++i) {
      const float before = residual[i];
      const float decayed = decay * before;
      const float sum = decayed + scale * Widen(grad[i]);
      const float kept = IsFinite(decayed) ? decayed : before;
      residual[i] = IsFinite(sum) ? sum : kept;
      bad_in_run += IsFinite(sum) ? 0 : 1;
    }
    bad += bad_in_run;
  }
  return bad;
}

HVD_SPARSE_CLONES
std::int64_t AccumulateFloat(const float* grad, std::int64_t size, float decay, float scale,
                             float* residual) {
  return AccumulateAs(grad, size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateDouble(const double* grad, std::int64_t size, float decay, float scale,
                              float* residual) {
  return AccumulateAs(grad, size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateFloat16(const Float16* grad, std::int64_t size, float decay, float scale,
                               float* residual) {
  return AccumulateAs(grad, size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateBFloat16(const BFloat16* grad, std::int64_t size, float decay, float scale,
                                float* residual) {
  return AccumulateAs(grad, size, decay, scale, residual);
}

struct Sums {
  double sum = 0, squares = 0;
};

/// Sums, always in the same 16 lanes, so that every instruction set gives the same bits.
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

/// Is |x| above a threshold? Never so for NaN.
struct Above {
  float threshold;
  HVD_SPARSE_INLINE bool operator()(float x) const { return std::fabs(x) > threshold; }
};

}  // namespace

std::int64_t Accumulate(GradView grad, float decay, float scale, Span<float> residual) {
  const std::int64_t size = std::min(grad.numel, residual.size);
  switch (grad.dtype) {
    case DType::kFloat32:
      return AccumulateFloat(static_cast<const float*>(grad.data), size, decay, scale,
                             residual.data);
    case DType::kFloat64:
      return AccumulateDouble(static_cast<const double*>(grad.data), size, decay, scale,
                              residual.data);
    case DType::kFloat16:
      return AccumulateFloat16(static_cast<const Float16*>(grad.data), size, decay, scale,
                               residual.data);
    case DType::kBFloat16:
      return AccumulateBFloat16(static_cast<const BFloat16*>(grad.data), size, decay, scale,
                                residual.data);
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(grad.dtype));
}

Moments ComputeMoments(Span<const float> dense) {
  if (dense.size == 0) return {};
  const Sums sums = AddUp(dense.data, dense.size);
  const double mean = sums.sum / static_cast<double>(dense.size);
  const double variance = sums.squares / static_cast<double>(dense.size) - mean * mean;
  return {mean, std::sqrt(std::max(variance, 0.0))};
}

HVD_SPARSE_CLONES
std::int64_t CountAbove(const float* dense, std::int64_t size, float threshold) {
  std::int64_t count = 0;
  for (std::int64_t start = 0; start < size; start += kRun) {
    count += CountHits(dense + start, std::min(kRun, size - start), Above{threshold});
  }
  return count;
}

HVD_SPARSE_CLONES
std::int64_t SelectAbove(const float* dense, std::int64_t size, float threshold, Index offset,
                         Room room) {
  std::int64_t written = 0;
  return ForEachHit(dense, size, Above{threshold},
                    [&](std::int64_t i) __attribute__((always_inline)) {
                      if (written >= room.size) return;
                      room.indices[written] = offset + static_cast<Index>(i);
                      room.values[written++] = dense[i];
                    });
}

void Sample(Span<const float> dense, std::int64_t count, std::vector<float>* sample) {
  constexpr std::int64_t kChunk = 16;  // one cache line
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  if (chunks * kChunk >= dense.size) {
    sample->assign(dense.begin(), dense.end());
    return;
  }
  sample->resize(static_cast<std::size_t>(chunks * kChunk));
  const double stride = static_cast<double>(dense.size - kChunk) / static_cast<double>(chunks);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const auto start = static_cast<std::int64_t>((static_cast<double>(c) + 0.5) * stride);
    std::memcpy(sample->data() + c * kChunk, dense.data + start, kChunk * sizeof(float));
  }
}

}  // namespace hvd_sparse::cpu

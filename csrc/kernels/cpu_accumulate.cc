#include "csrc/kernels/cpu_accumulate.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/kernels/clones.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

/// Entries per 32-bit counter, which vectorises twice as well as a 64-bit one.
constexpr std::int64_t kRun = std::int64_t{1} << 20;

HVD_SPARSE_INLINE bool IsFinite(float value) { return std::fabs(value) <= FLT_MAX; }

template <typename T>
HVD_SPARSE_INLINE std::int32_t AddScaled(const T* __restrict grad, std::int64_t size, float decay,
                                         float scale, float* __restrict residual) {
  std::int32_t bad = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const float before = residual[i];
    const float decayed = decay * before;
    const float sum = decayed + scale * Widen(grad[i]);
    const float kept = IsFinite(decayed) ? decayed : before;
    residual[i] = IsFinite(sum) ? sum : kept;
    bad += IsFinite(sum) ? 0 : 1;
  }
  return bad;
}

/// Like AddScaled for decay = scale = 1, the usual case, with half of the instructions.
template <typename T>
HVD_SPARSE_INLINE std::int32_t Add(const T* __restrict grad, std::int64_t size,
                                   float* __restrict residual) {
  std::int32_t bad = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const float before = residual[i];
    const float sum = before + Widen(grad[i]);
    residual[i] = IsFinite(sum) ? sum : before;
    bad += IsFinite(sum) ? 0 : 1;
  }
  return bad;
}

template <typename T>
HVD_SPARSE_INLINE std::int64_t AccumulateAs(const T* grad, std::int64_t size, float decay,
                                            float scale, float* residual) {
  std::int64_t bad = 0;
  for (std::int64_t start = 0; start < size; start += kRun) {
    const std::int64_t run = std::min(kRun, size - start);
    bad += decay == 1 && scale == 1 ? Add(grad + start, run, residual + start)
                                    : AddScaled(grad + start, run, decay, scale, residual + start);
  }
  return bad;
}

HVD_SPARSE_CLONES
std::int64_t AccumulateFloat(const void* grad, std::int64_t size, float decay, float scale,
                             float* residual) {
  return AccumulateAs(static_cast<const float*>(grad), size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateDouble(const void* grad, std::int64_t size, float decay, float scale,
                              float* residual) {
  return AccumulateAs(static_cast<const double*>(grad), size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateFloat16(const void* grad, std::int64_t size, float decay, float scale,
                               float* residual) {
  return AccumulateAs(static_cast<const Float16*>(grad), size, decay, scale, residual);
}

HVD_SPARSE_CLONES
std::int64_t AccumulateBFloat16(const void* grad, std::int64_t size, float decay, float scale,
                                float* residual) {
  return AccumulateAs(static_cast<const BFloat16*>(grad), size, decay, scale, residual);
}

}  // namespace

AccumulateFunction AccumulateFor(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return AccumulateFloat;
    case DType::kFloat64:
      return AccumulateDouble;
    case DType::kFloat16:
      return AccumulateFloat16;
    case DType::kBFloat16:
      return AccumulateBFloat16;
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(dtype));
}

}  // namespace hvd_sparse::cpu

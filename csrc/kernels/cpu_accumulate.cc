/// The loops of error feedback, one for each number type of gradients.

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_kernels.h"
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
HVD_SPARSE_INLINE std::int64_t AccumulateAs(const void* memory, std::int64_t size, float decay,
                                            float scale, float* residual) {
  const auto* const grad = static_cast<const T*>(memory);
  std::int64_t bad = 0;
  for (std::int64_t start = 0; start < size; start += kRun) {
    const std::int64_t run = std::min(kRun, size - start);
    bad += decay == 1 && scale == 1 ? Add(grad + start, run, residual + start)
                                    : AddScaled(grad + start, run, decay, scale, residual + start);
  }
  return bad;
}

}  // namespace

HVD_SPARSE_CLONES
std::int64_t AddGradient(DType dtype, const void* grad, std::int64_t size, float decay, float scale,
                         float* residual) {
  switch (dtype) {
    case DType::kFloat32:
      return AccumulateAs<float>(grad, size, decay, scale, residual);
    case DType::kFloat64:
      return AccumulateAs<double>(grad, size, decay, scale, residual);
    case DType::kFloat16:
      return AccumulateAs<Float16>(grad, size, decay, scale, residual);
    case DType::kBFloat16:
      return AccumulateAs<BFloat16>(grad, size, decay, scale, residual);
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(dtype));
}

}  // namespace hvd_sparse::cpu

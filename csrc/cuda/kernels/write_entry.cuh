/// Writing an entry of a reduced block to a gradient, and adding its rounding loss to the residual,
/// with the bits of csrc/kernels/cpu_scatter.cc.

#pragma once

#include "csrc/cuda/base/entries.cuh"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {

/// The outcome of writing an entry, and the residual's former value if a loss was added to it.
struct Written {
  Narrowed outcome = Narrowed::kExact;
  float former = 0;
};

/// Writes scale * value to `to`. In a narrow type, the rounding loss times loss_scale is added to
/// `residual`, unless that is null.
template <typename T>
__device__ Written WriteEntry(float value, float scale, T* to, float* residual, float loss_scale) {
  const float scaled = __fmul_rn(scale, value);
  const T written = Narrow<T>(scaled);
  *to = written;
  Written result;
  if constexpr (sizeof(T) < sizeof(float)) {
    const float kept = Widen(written);
    if (!IsFinite(kept)) {
      result.outcome = Narrowed::kNotFinite;
    } else if (kept != scaled && residual != nullptr) {
      result.outcome = Narrowed::kRounded;
      result.former = *residual;
      *residual = __fadd_rn(result.former, __fmul_rn(loss_scale, __fsub_rn(scaled, kept)));
    }
  }
  return result;
}

}  // namespace hvd_sparse::cuda

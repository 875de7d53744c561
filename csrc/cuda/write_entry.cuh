/// An entry of a reduced block on its way into a gradient, and what rounding loses on its way back
/// to the residual: csrc/kernels/cpu_scatter.cc, with its bits.

#ifndef HVD_SPARSE_CUDA_WRITE_ENTRY_CUH_
#define HVD_SPARSE_CUDA_WRITE_ENTRY_CUH_

#include "csrc/cuda/entries.cuh"
#include "csrc/cuda/scatter.h"

namespace hvd_sparse::cuda {

/// What becomes of a value, and what the residual held where it takes a loss.
struct Written {
  Narrowed outcome = Narrowed::kExact;
  float former = 0;
};

/// Writes scale * value; in a narrow type, its loss times loss_scale joins the residual's entry,
/// where there is one.
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

#endif  // HVD_SPARSE_CUDA_WRITE_ENTRY_CUH_

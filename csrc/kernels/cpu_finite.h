/// The check that a gradient is finite, on the CPU.

#ifndef HVD_SPARSE_KERNELS_CPU_FINITE_H_
#define HVD_SPARSE_KERNELS_CPU_FINITE_H_

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

/// Returns true if no entry is NaN or infinite in the gradient's own number type.
bool AllFinite(GradView gradient);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_FINITE_H_

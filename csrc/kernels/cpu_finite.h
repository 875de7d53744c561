/// Whether a gradient is finite, and a mark for one that is not to be used.

#ifndef HVD_SPARSE_KERNELS_CPU_FINITE_H_
#define HVD_SPARSE_KERNELS_CPU_FINITE_H_

#include "csrc/base/types.h"

namespace hvd_sparse::cpu {

/// Whether no entry is NaN or infinite in the gradient's own number type.
bool AllFinite(GradView gradient);

/// Makes its first entry NaN, if it has any.
void PutNaN(const GradView& gradient);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_FINITE_H_

/// Putting back what was selected and not delivered, where both blocks lie on a device.

#ifndef HVD_SPARSE_CUDA_BLOCK_SETTLE_H_
#define HVD_SPARSE_CUDA_BLOCK_SETTLE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/device_block.h"

namespace hvd_sparse::cuda {

/// Kernels::Settle, bit for bit: residual[i] = value for `selected` entries whose index does not
/// have the survived bit in `reduced`; for all of them where the header of `reduced` says that the
/// step is refused. `reduced` may be malformed.
void LaunchSettle(const DeviceBlock& selected, const DeviceBlock& reduced, Span<float> residual,
                  cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BLOCK_SETTLE_H_

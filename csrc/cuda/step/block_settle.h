/// Settles the entries that a rank has selected, with blocks on a device: undelivered ones return
/// to the residual, and delivered ones are cleared in the velocity, too.

#ifndef HVD_SPARSE_CUDA_STEP_BLOCK_SETTLE_H_
#define HVD_SPARSE_CUDA_STEP_BLOCK_SETTLE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/base/device_block.h"

namespace hvd_sparse::cuda {

/// Arguments of LaunchSettle. `reduced` may be malformed. An entry is delivered if its index has
/// the survived bit there; none is if the header of `reduced` says that the step is refused.
struct SettleArgs {
  DeviceBlock selected, reduced;
  Span<float> residual;
  Span<float> velocity = {};  ///< if momentum is corrected; else empty
  float* masked = nullptr;    ///< receives the velocity's former values at the selected entries, in
                              ///< their order; null if the step is never undone
};

/// Applies Kernels::Settle, bit for bit: residual[i] = value for undelivered entries. Also applies
/// momentum factor masking: velocity[i] = 0 for delivered ones. One launch.
void LaunchSettle(const SettleArgs& args, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BLOCK_SETTLE_H_

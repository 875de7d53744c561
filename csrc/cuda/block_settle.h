/// What becomes of the entries that a rank has selected, where blocks lie on a device: those that
/// were not delivered return, and the others leave the velocity, too.

#ifndef HVD_SPARSE_CUDA_BLOCK_SETTLE_H_
#define HVD_SPARSE_CUDA_BLOCK_SETTLE_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/device_block.h"

namespace hvd_sparse::cuda {

/// `reduced` may be malformed. An entry is delivered if its index has the survived bit there; none
/// is where the header of `reduced` says that the step is refused.
struct Settling {
  DeviceBlock selected, reduced;
  Span<float> residual;
  Span<float> velocity = {};  ///< where momentum is corrected; else empty
  float* masked = nullptr;    ///< gets what the velocity has held at each of the selected entries,
                              ///< in their order; null: nobody undoes
};

/// Kernels::Settle, bit for bit: residual[i] = value where an entry was not delivered. And momentum
/// factor masking: velocity[i] = 0 where one was. One launch.
void LaunchSettle(const Settling& settling, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BLOCK_SETTLE_H_

/// Undoing on the device what a step has done to a residual.

#ifndef HVD_SPARSE_CUDA_BLOCK_UNDO_H_
#define HVD_SPARSE_CUDA_BLOCK_UNDO_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/device_block.h"

namespace hvd_sparse::cuda {

// Blocks may be malformed, and hold a position several times: what lies outside the residual is
// left out.

/// Notes what a residual holds at the entries of a block: `former`, of the same capacity, gets the
/// header, the positions, and the values there. Before LaunchApply, whose rounding losses cannot be
/// taken off again; it then goes by these positions, which no late message changes.
void LaunchNoteFormer(const DeviceBlock& block, Span<const float> residual,
                      const DeviceBlock& former, cudaStream_t stream);

/// residual[i] = value for every entry: of what was selected, or of what was noted.
void LaunchPutBack(const DeviceBlock& block, Span<float> residual, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BLOCK_UNDO_H_

/// Undoing on the device what a step has done to a residual.

#ifndef HVD_SPARSE_CUDA_STEP_BLOCK_UNDO_H_
#define HVD_SPARSE_CUDA_STEP_BLOCK_UNDO_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/base/device_block.h"

namespace hvd_sparse::cuda {

// Blocks may be malformed, and hold a position several times. Positions outside the residual are
// skipped.

/// Saves what a residual holds at the entries of a block: `former`, of the same capacity, receives
/// the header, the positions, and the residual's values there. It precedes LaunchApply, whose
/// rounding losses cannot be subtracted again, and which then reads header and positions from
/// `former`, where no late message can change them.
void LaunchNoteFormer(const DeviceBlock& block, Span<const float> residual,
                      const DeviceBlock& former, cudaStream_t stream);

/// Sets residual[i] = value for every entry of a selected block, or of one that LaunchNoteFormer
/// saved.
void LaunchPutBack(const DeviceBlock& block, Span<float> residual, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BLOCK_UNDO_H_

/// csrc/kernels/merge_work.h on a CUDA device.

#pragma once

#include <cstdint>
#include <memory>

#include "csrc/kernels/merge_work.h"

namespace hvd_sparse::cuda {

/// Makes the work that merges two blocks and keeps the k largest entries. Both blocks are copied to
/// the device beforehand. The result has survived bits only where `own` has them. Throws
/// Unavailable if there is no such device.
std::unique_ptr<MergeWork> MakeMergeWork(int device, const SparseBlock& own,
                                         const SparseBlock& theirs, std::int64_t k);

}  // namespace hvd_sparse::cuda

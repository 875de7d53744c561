/// The pieces of csrc/kernels/stream_work.h on a CUDA device. All functions throw Unavailable if
/// there is none.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/stream_work.h"

namespace hvd_sparse::cuda {

/// Makes the work that merges two blocks and keeps the k largest entries. Both blocks are copied to
/// the device beforehand. The result has survived bits only where `own` has them.
std::unique_ptr<StreamWork> MakeMergeWork(int device, const SparseBlock& own,
                                          const SparseBlock& theirs, std::int64_t k);

/// Makes the work of one pass: residual += gradient, then the entries above the threshold move to
/// the block, first ones first, as far as a selection of k entries has room. Gradient and residual
/// lie on the device.
std::unique_ptr<StreamWork> MakePassWork(int device, GradView gradient, Span<float> residual,
                                         float threshold, std::int64_t k);

/// Makes the work of DeviceSelector::Select of k entries, starting from a zero state. All entries
/// of the block have the survived bit.
std::unique_ptr<StreamWork> MakeSelectWork(int device, GradView gradient, Span<float> residual,
                                           std::int64_t k);

/// Makes the work of a whole step of a single rank, DeviceExchange::Run: each gradient is a
/// segment, ks[i] entries of gradient i are selected, and the result is written to `outputs`.
/// Starts from zero states.
std::unique_ptr<StreamWork> MakeStepWork(int device, const std::vector<GradView>& gradients,
                                         Span<float> residual, const std::vector<std::int64_t>& ks,
                                         const std::vector<GradView>& outputs);

}  // namespace hvd_sparse::cuda

/// The pieces of csrc/kernels/stream_work.h on a CUDA device. Throw Unavailable where there is
/// none.

#ifndef HVD_SPARSE_CUDA_STREAM_WORK_H_
#define HVD_SPARSE_CUDA_STREAM_WORK_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/stream_work.h"

namespace hvd_sparse::cuda {

/// The k largest of own + theirs, of blocks that lie on the device before the work begins. Its
/// block has no survived bits unless own has.
std::unique_ptr<StreamWork> MakeMergeWork(int device, const SparseBlock& own,
                                          const SparseBlock& theirs, std::int64_t k);

/// residual += gradient, less the entries that exceed a threshold, which become the block; the
/// first ones of them, for which a selection of k entries has room. Gradient and residual lie on
/// the device.
std::unique_ptr<StreamWork> MakePassWork(int device, GradView gradient, Span<float> residual,
                                         float threshold, std::int64_t k);

/// DeviceSelector::Select of k entries, from a state of zeros on. All have the survived bit.
std::unique_ptr<StreamWork> MakeSelectWork(int device, GradView gradient, Span<float> residual,
                                           std::int64_t k);

/// A whole step of a rank that is alone, DeviceExchange::Run, of gradients that are a segment each,
/// k of them selected; the result is for `outputs`. From states of zeros on.
std::unique_ptr<StreamWork> MakeStepWork(int device, const std::vector<GradView>& gradients,
                                         Span<float> residual, const std::vector<std::int64_t>& ks,
                                         const std::vector<GradView>& outputs);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STREAM_WORK_H_

/// The choice of a device's parts of a step, see csrc/kernels/stream_work.h.

#ifndef HVD_SPARSE_DEVICES_STREAM_WORK_FOR_H_
#define HVD_SPARSE_DEVICES_STREAM_WORK_FOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/kernels/stream_work.h"

namespace hvd_sparse {

/// Make parts of a step that stay on a CUDA device; see csrc/cuda/step/stream_work.h. Throw
/// Unavailable, with the reason, if there is no such device.
std::unique_ptr<StreamWork> MergeWorkOn(Device device, const SparseBlock& own,
                                        const SparseBlock& theirs, std::int64_t k);
std::unique_ptr<StreamWork> PassWorkOn(Device device, GradView gradient, Span<float> residual,
                                       float threshold, std::int64_t k);
std::unique_ptr<StreamWork> SelectWorkOn(Device device, GradView gradient, Span<float> residual,
                                         std::int64_t k);
std::unique_ptr<StreamWork> StepWorkOn(Device device, const std::vector<GradView>& gradients,
                                       Span<float> residual, const std::vector<std::int64_t>& ks,
                                       const std::vector<GradView>& outputs);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_DEVICES_STREAM_WORK_FOR_H_

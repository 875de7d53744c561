/// Reading, writing and clearing single entries of a residual on the device.
///
/// Positions and values lie on the device, too. Positions of a block may carry the survived bit,
/// which is ignored. No position occurs twice in one call.

#ifndef HVD_SPARSE_CUDA_KERNELS_PLACES_H_
#define HVD_SPARSE_CUDA_KERNELS_PLACES_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// values[n] = residual[positions[n]].
void LaunchGather(const float* residual, const Index* positions, std::int64_t count, float* values,
                  cudaStream_t stream);

/// values[n] = residual[positions[n]], and then residual[positions[n]] = 0.
void LaunchGatherAndClear(float* residual, const Index* positions, std::int64_t count,
                          float* values, cudaStream_t stream);

/// residual[positions[n]] = values[n].
void LaunchPut(const Index* positions, const float* values, std::int64_t count, float* residual,
               cudaStream_t stream);

/// values[n] = entry n of a sample as error feedback will leave it: entry n % length of the stretch
/// that begins at begins[n / length]. Without a gradient the residual is sampled as it is.
void LaunchSample(const Feedback& feedback, const Index* begins, std::int64_t length,
                  std::int64_t count, float* values, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_PLACES_H_

/// Writing a reduced block into a gradient on the device; contract in kernels.h.

#ifndef HVD_SPARSE_CUDA_KERNELS_SCATTER_H_
#define HVD_SPARSE_CUDA_KERNELS_SCATTER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// The outcome of writing an entry in a narrow number type.
enum class Narrowed : std::uint8_t { kExact, kRounded, kNotFinite };

/// Arguments of one Kernels::Scatter; all memory lies on the device.
struct ScatterArgs {
  const Index* indices;  ///< of the block's entries; those beyond the gradient are skipped
  const float* values;
  std::int64_t count;
  float scale;
  Index offset;  ///< of the gradient in its bucket
  GradView grad;
  Span<float> residual;
  float loss_scale;

  /// For narrow number types, by entry: the outcome and, if it was rounded, what the residual held
  /// before the loss was added, else 0.
  Narrowed* narrowed;
  float* former;
};

void LaunchScatter(const ScatterArgs& args, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_SCATTER_H_

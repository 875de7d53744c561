/// Writing a reduced block into a gradient on the device; contract in kernels.h.

#ifndef HVD_SPARSE_CUDA_SCATTER_H_
#define HVD_SPARSE_CUDA_SCATTER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// What became of an entry in a narrow number type.
enum class Narrowed : std::uint8_t { kExact, kRounded, kNotFinite };

/// One call of Scatter; all memory lies on the device.
struct Scattering {
  const Index* indices;  ///< of entries of the block; those beyond the gradient are left out
  const float* values;
  std::int64_t count;
  float scale;
  Index offset;  ///< of the gradient in its bucket
  GradView grad;
  Span<float> residual;
  float loss_scale;

  /// For narrow number types, by entry: what became of it, and where it was rounded what the
  /// residual held before it took the loss, else 0.
  Narrowed* narrowed;
  float* former;
};

void LaunchScatter(const Scattering& scattering, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_SCATTER_H_

/// Writing a reduced block into a gradient on the device; contract in kernels.h.

#ifndef HVD_SPARSE_CUDA_SCATTER_H_
#define HVD_SPARSE_CUDA_SCATTER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_block.h"
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
  /// residual held before it took the loss.
  Narrowed* narrowed;
  float* former;
};

void LaunchScatter(const Scattering& scattering, cudaStream_t stream);

/// A reduced block on the device on its way into a gradient; see Kernels::Scatter.
struct Applying {
  DeviceBlock reduced;
  float scale;
  Index offset;  ///< of the gradient in its bucket
  GradView grad;
  Span<float> residual;  ///< the part that belongs to the gradient: takes what rounding loses
  float loss_scale;
};

/// Sets kSumNotFinite in the block's header where a value would not be finite once it is written.
/// Ranks that hold the same block find the same.
void LaunchCheckFits(const Applying& applying, cudaStream_t stream);

/// Zeroes the gradient and writes the block's part of it; nothing at all where the header says that
/// the step is refused. Two launches. Nothing can be undone, so what might refuse the step must be
/// known before.
void LaunchApply(const Applying& applying, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_SCATTER_H_

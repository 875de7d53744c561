/// Adds what a rank has not sent yet to a gradient that is sent dense, on the device; contract in
/// kernels.h.

#ifndef HVD_SPARSE_CUDA_KERNELS_JOIN_H_
#define HVD_SPARSE_CUDA_KERNELS_JOIN_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "csrc/cuda/base/device_memory.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Enqueues Kernels::Join. `after`: for a narrow number type, device memory as long as the
/// gradient, which receives what the type cannot hold; else unused.
void LaunchJoin(const UnsentParts& parts, GradView gradient, float* after, cudaStream_t stream);

/// The residual after Join: memory of the current device for a gradient of a narrow number type,
/// nothing for a wide one.
class DeviceResidualAfterJoin final : public ResidualAfterJoin {
 public:
  /// Returns memory for the rounding errors of `gradient`, or null if it has none.
  float* RoomFor(const GradView& gradient) {
    const bool is_narrow = SizeOf(gradient.dtype) < SizeOf(DType::kFloat32);
    const std::size_t bytes = is_narrow ? static_cast<std::size_t>(gradient.numel) * 4 : 0;
    if (bytes == 0) memory_.reset();
    if (bytes > 0 && (memory_ == nullptr || memory_->size() != bytes)) {
      memory_ = std::make_unique<DeviceBytes>(bytes);
    }
    return memory_ == nullptr ? nullptr : static_cast<float*>(memory_->get());
  }

  /// Enqueues residual = after. Returns true if that may be other than zero.
  bool CopyTo(Span<float> residual, cudaStream_t stream) const {
    const auto bytes = static_cast<std::size_t>(residual.size) * sizeof(float);
    if (memory_ == nullptr) {
      Check(cudaMemsetAsync(residual.data, 0, bytes, stream), "clear a residual");
      return false;
    }
    Check(cudaMemcpyAsync(residual.data, memory_->get(), bytes, cudaMemcpyDefault, stream),
          "copy to a residual");
    return true;
  }

 private:
  std::unique_ptr<DeviceBytes> memory_;
};

/// Enqueues residual[i] *= decay.
void LaunchDecay(Span<float> residual, float decay, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_JOIN_H_

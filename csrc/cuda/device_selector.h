/// The selection of one bucket of one gradient, of which the CPU never learns anything: error
/// feedback, threshold, block and the next step's threshold stay on the device.
///
///     try the threshold that the steps before predict                   a launch
///     error feedback, and what exceeds it                               one
///     too few, or too many: back with them, and take the exact top-k    six, idle as a rule
///     the block's header                                                one
///     the k largest of them; the others return to the residual          four
///     learn the next threshold                                          one
///
/// and one to clear the scratch memory of all: 15 launches. As `gaussian` does on the CPU, with the
/// same bits as long as its first threshold will do (2k/3 <= count <= room). Where that misses, the
/// CPU searches for another threshold, and this takes the exact top-k: so also in the first step.

#ifndef HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_
#define HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/block_top_k.h"
#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"
#include "csrc/cuda/residual_top_k.h"
#include "csrc/cuda/threshold_control.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

class DeviceSelector {
 public:
  /// Selects k of `numel` entries, 1 <= k <= numel, with an exact refresh every `refresh` steps.
  /// Allocates on the current device all that it will ever need.
  DeviceSelector(std::int64_t numel, std::int64_t k, double refresh = 32);

  std::int64_t numel() const { return control_.numel; }
  std::int64_t k() const { return control_.k; }

  /// feedback.residual = decay * residual + scale * gradient, less what is taken; `selected` gets
  /// at most k entries, all with the survived bit. Its capacity is at least k. `state` lies on the
  /// device. Gives the stream its work and returns; one call's work must be done before the next
  /// one's begins, which it is on one stream.
  void Select(const Feedback& feedback, const Identity& identity, SelectionState* state,
              const DeviceBlock& selected, cudaStream_t stream);

  static constexpr int kLaunches = 15;

 private:
  /// What is cleared before each call, then what is not.
  void DivideZeros(Divider* divider);
  void DivideRest(Divider* divider);

  const ThresholdControl control_;
  TakeScratch take_;
  ResidualTopKScratch exact_;
  TopKScratch trim_;
  DeviceBlock taken_;
  float* tried_ = nullptr;
  const DeviceBytes zeros_, rest_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_

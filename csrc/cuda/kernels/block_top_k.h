/// Keeping the largest entries of a block, on its device.

#ifndef HVD_SPARSE_CUDA_KERNELS_BLOCK_TOP_K_H_
#define HVD_SPARSE_CUDA_KERNELS_BLOCK_TOP_K_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/device_memory.h"
#include "csrc/kernels/sign_groups.h"

namespace hvd_sparse::cuda {

struct Digits;

/// Scratch memory of one LaunchKeepTopK, all zero at first.
struct TopKScratch {
  Digits* digits = nullptr;
  unsigned* begun = nullptr;            ///< tiles that have begun
  unsigned long long* words = nullptr;  ///< see look_back.cuh

  /// Takes the memory for a block of `capacity` entries from `divider`.
  static TopKScratch From(Divider* divider, std::int64_t capacity);
};

/// Options of one LaunchKeepTopK.
struct KeepTopKOptions {
  std::int64_t k;
  bool is_counted;       ///< LaunchMerge has counted the first level of scratch.digits
  bool marks;            ///< kept entries get the survived bit; else their bits stay
  Span<float> residual;  ///< of the bucket; dropped entries return to it unless it is empty
};

/// Writes the k largest magnitudes of `from` to `to`, with the bits of Kernels::KeepTopK: ties go
/// to the lower index, zeros count, and NaN is larger than all. `to` has room for k, and receives
/// the header of `from` with its own count. Three launches, or four if the first level is not
/// counted yet.
void LaunchKeepTopK(const KeepTopKOptions& options, const DeviceBlock& from, const DeviceBlock& to,
                    const TopKScratch& scratch, cudaStream_t stream);

/// Writes the entries of a group, none of them zero, to `to`; the others return to the residual.
/// One launch, which needs no digits.
void LaunchKeepGroup(const SignGroup& group, Span<float> residual, const DeviceBlock& from,
                     const DeviceBlock& to, const TopKScratch& scratch, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_BLOCK_TOP_K_H_

/// Keeping the largest entries of a block of a device, there.

#ifndef HVD_SPARSE_CUDA_BLOCK_TOP_K_H_
#define HVD_SPARSE_CUDA_BLOCK_TOP_K_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"

namespace hvd_sparse::cuda {

struct Digits;

/// What keeping the largest entries needs, all zero at first; good for one call.
struct TopKScratch {
  Digits* digits = nullptr;
  unsigned* begun = nullptr;            ///< tiles
  unsigned long long* words = nullptr;  ///< of look_back.cuh

  /// For a block of so many entries.
  static TopKScratch From(Divider* divider, std::int64_t capacity);
};

/// How to keep the largest entries.
struct Keeping {
  std::int64_t k;
  bool is_counted;       ///< LaunchMerge has counted the first level of scratch.digits
  bool marks;            ///< every entry kept gets the survived bit; else bits stay
  Span<float> residual;  ///< of the bucket: dropped entries return there; none: they do not
};

/// Kernels::KeepTopK, bit for bit, from one block to another: the k largest magnitudes of `from`
/// become the entries of `to`, ties to the lower index; zeros count, and NaN is larger than all.
/// `to` has room for k, and its header is from's. Three launches, or four where the first level is
/// not counted yet.
void LaunchKeepTopK(const Keeping& keeping, const DeviceBlock& from, const DeviceBlock& to,
                    const TopKScratch& scratch, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BLOCK_TOP_K_H_

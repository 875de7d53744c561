/// The exact top-k of a residual, found and taken without the CPU: for steps whose threshold has
/// missed, or that know none.

#ifndef HVD_SPARSE_CUDA_RESIDUAL_TOP_K_H_
#define HVD_SPARSE_CUDA_RESIDUAL_TOP_K_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_block.h"
#include "csrc/cuda/take.h"

namespace hvd_sparse::cuda {

struct Digits;

/// What it needs, all zero at first; good for one call.
struct ResidualTopKScratch {
  Digits* digits = nullptr;
  TakeScratch take;

  static ResidualTopKScratch From(Divider* divider, std::int64_t size);

  const Prefix* cut() const;  ///< on the device
};

/// Where a pass took entries above a threshold, and `missed`: puts them back, then takes the k
/// largest magnitudes, ties to the lower index, zeros never: Kernels::FindTopK and TakeCut, bit for
/// bit. Else nothing. `taken` has room for k; 1 <= k <= residual.size. Six launches.
void LaunchTopKIfMissed(Span<float> residual, std::int64_t k, const Missed& missed,
                        const Taken& taken, const ResidualTopKScratch& scratch,
                        cudaStream_t stream);

/// What a rank says of its block.
struct Identity {
  std::int32_t rank;
  std::uint32_t bucket, step, asked;
};

/// Writes the header of a block to which a pass took entries, and, where that `missed`, a top-k did
/// (null: none could). kOverflow: more exceeded the threshold than there was room for.
void LaunchSeal(const DeviceBlock& block, const Identity& identity, const TakeScratch& pass,
                const Missed& missed, const ResidualTopKScratch* top_k, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_RESIDUAL_TOP_K_H_

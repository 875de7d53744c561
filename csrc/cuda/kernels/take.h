/// Error feedback and taking on the device, in one pass over one array: the kernels behind
/// Kernels::Accumulate, and Take and TakeCut of candidates.

#ifndef HVD_SPARSE_CUDA_KERNELS_TAKE_H_
#define HVD_SPARSE_CUDA_KERNELS_TAKE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/base/work.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Memory of the device for entries taken from a residual.
struct Taken {
  Index* indices;
  float* values;
  std::int64_t room;
  Index offset;  ///< of the residual in its bucket
};

/// The counts of a pass.
struct Totals {
  unsigned above, ties;  ///< entries above the threshold, and those equal to the cut
  unsigned not_finite;
};

/// Applies error feedback; adds the number of entries that were not finite to `not_finite`, on the
/// device.
void LaunchAccumulate(const Feedback& feedback, unsigned* not_finite, cudaStream_t stream);

/// Applies error feedback if there is a gradient (feedback.grad.data); then moves the entries with
/// |residual| > threshold to `taken`, while there is room, by way of `pile`, memory for as many
/// entries. If there is not enough room, the entries taken are any, in any order: LaunchTakeAbove
/// can take the first ones once they are put back. Returns the totals, on the device; only above
/// and not_finite are counted. Two launches.
const Totals* LaunchTakeByPile(const Feedback& feedback, float threshold, const Taken& pile,
                               const Taken& taken, Work* work);

/// Moves the entries with |residual| > threshold to `taken`, first ones first, while there is room.
void LaunchTakeAbove(Span<float> residual, float threshold, const Taken& taken, Work* work);

/// Moves the entries that `cut` keeps to `taken`, while there is room. Returns the totals, on the
/// device.
const Totals* LaunchTakeCut(Span<float> residual, TopKCut cut, const Taken& taken, Work* work);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_KERNELS_TAKE_H_

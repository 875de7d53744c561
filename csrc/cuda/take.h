/// Error feedback and taking on the device, in one pass: the kernels behind Accumulate,
/// AccumulateAndTake, TakeAbove and TakeCut.

#ifndef HVD_SPARSE_CUDA_TAKE_H_
#define HVD_SPARSE_CUDA_TAKE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_memory.h"
#include "csrc/cuda/work.h"
#include "csrc/kernels/clones.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Entries on their way from a residual to a block, on the device.
struct Taken {
  Index* indices;
  float* values;
  std::int64_t room;
  Index offset;  ///< of the residual in its bucket
};

/// What a pass has counted.
struct Totals {
  unsigned above, ties;  ///< entries above the threshold, and those equal to the cut
  unsigned not_finite;
};

/// Whether a pass was in vain: fewer or more entries exceeded its threshold than will do. Read on
/// the device; without totals there was none, and it was not.
struct Missed {
  const Totals* totals;
  unsigned fewest, most;

  HVD_SPARSE_INLINE bool OnDevice() const {
    return totals != nullptr && (totals->above < fewest || totals->above > most);
  }
};

struct Pass;
struct Prefix;

/// What a pass needs, all zero at first; good for one.
struct TakeScratch {
  Pass* pass = nullptr;
  unsigned long long* words = nullptr;  ///< of look_back.cuh

  /// For a residual of so many entries.
  static TakeScratch From(Divider* divider, std::int64_t size);

  const Totals* totals() const;  ///< on the device
};

/// Error feedback; adds to the count of what is not finite, on the device.
void LaunchAccumulate(const Feedback& feedback, unsigned* not_finite, cudaStream_t stream);

/// Error feedback, where there is a gradient (feedback.grad.data); then the entries with |residual|
/// > threshold move to `taken`, first ones first, while there is room. Returns the totals, on the
/// device.
const Totals* LaunchTakeAbove(const Feedback& feedback, float threshold, const Taken& taken,
                              Work* work);

/// The same with a threshold that lies on the device.
void LaunchTakeAbove(const Feedback& feedback, const float* threshold, const Taken& taken,
                     const TakeScratch& scratch, cudaStream_t stream);

/// Moves the entries that `cut` keeps to `taken`, while there is room. Returns the totals, on the
/// device.
const Totals* LaunchTakeCut(Span<float> residual, TopKCut cut, const Taken& taken, Work* work);

/// The same with a cut that a radix select found on the device; nothing unless `missed`.
void LaunchTakeCut(Span<float> residual, const Prefix* cut, const Missed& missed,
                   const Taken& taken, const TakeScratch& scratch, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TAKE_H_

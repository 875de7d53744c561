/// The selection of a bucket without the CPU: error feedback, thresholds, block and the next step's
/// thresholds stay on the device.
///
///     predict thresholds from the steps before                                one launch
///     error feedback, and take the entries above the thresholds               two
///     if there are too few or too many: put them back, take the exact top-k   five, idle as a rule
///     trim segments with too many entries, learn the next thresholds          one
///     gather all segments in one block                                        one
///     keep as many as the ks add up to; the others return to the residual     three
///
/// One more launch clears all scratch memory: 14 in all, for any number of segments and gradients.
/// The result is that of `gaussian` on the CPU with GTopK::Trim after it, bit for bit, as long as
/// the first threshold of each segment will do (2k/3 <= count <= room). If it misses, the CPU
/// searches for another threshold, but this takes the exact top-k of that segment, as it also does
/// in the first step.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/kernels/launches.h"
#include "csrc/cuda/step/bucket_layout.h"
#include "csrc/cuda/step/bucket_tables.h"
#include "csrc/cuda/step/launches.h"

namespace hvd_sparse::cuda {

class DeviceSelector {
 public:
  /// Makes an exact refresh every `refresh` steps, >= 1. Allocates all memory that it will ever
  /// need on the current device.
  DeviceSelector(const BucketLayout& layout, double refresh);

  /// Enqueues the selection of a launch that has been checked, and whose tables have been updated
  /// on the stream before: adds the gradients to the residual, and writes at most tables.asked()
  /// entries to `selected`, which has room for them, all with the survived bit. One call's work
  /// must be done before the next one's begins, as it is on a single stream.
  void Select(const DeviceLaunch& launch, const BucketTables& tables, const Identity& identity,
              const DeviceBlock& selected, cudaStream_t stream);

  static constexpr int kLaunches = 14;

 private:
  /// Divide the memory that is cleared before each call, and the memory that is not.
  void DivideZeros(const BucketLayout& layout, Divider* divider);
  void DivideRest(const BucketLayout& layout, Divider* divider);

  SelectionArgs work_;
  TopKScratch trim_;
  DeviceBlock taken_;
  const DeviceBytes zeros_, rest_;
};

}  // namespace hvd_sparse::cuda

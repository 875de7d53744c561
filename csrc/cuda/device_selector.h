/// The selection of a bucket, of which the CPU never learns anything: error feedback, thresholds,
/// block and the next step's thresholds stay on the device.
///
///     try the thresholds that the steps before predict                        a launch
///     error feedback, and what exceeds them                                   one
///     where too few do, or too many: back with them, and take the exact
///     top-k                                                                   five, idle as a rule
///     trim segments that have too many, learn the next thresholds             one
///     all segments become one block                                           one
///     the sum of the ks of them; the others return to the residual            three
///
/// and one to clear the scratch memory of all: 13 launches, for any number of segments and
/// gradients. As `gaussian` does on the CPU, with GTopK::Trim behind it, and with the same bits as
/// long as the first threshold of each segment will do (2k/3 <= count <= room). Where that misses,
/// the CPU searches for another threshold, and this takes the exact top-k of that segment: so also
/// in the first step.

#ifndef HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_
#define HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/block_top_k.h"
#include "csrc/cuda/bucket_close.h"
#include "csrc/cuda/bucket_layout.h"
#include "csrc/cuda/bucket_pass.h"
#include "csrc/cuda/bucket_tables.h"
#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"

namespace hvd_sparse::cuda {

class DeviceSelector {
 public:
  /// With an exact refresh every `refresh` steps, >= 1. Allocates on the current device all that it
  /// will ever need.
  DeviceSelector(const BucketLayout& layout, double refresh);

  /// Of a launch that has been checked, and whose tables have been updated in the order of the
  /// stream: the gradients join the residual, and `selected` gets at most tables.asked() entries,
  /// all with the survived bit; it has room for them. Gives the stream its work and returns; one
  /// call's work must be done before the next one's begins, which it is on one stream.
  void Select(const DeviceLaunch& launch, const BucketTables& tables, const Identity& identity,
              const DeviceBlock& selected, cudaStream_t stream);

  static constexpr int kLaunches = 13;

 private:
  /// What is cleared before each call, then what is not.
  void DivideZeros(const BucketLayout& layout, Divider* divider);
  void DivideRest(const BucketLayout& layout, Divider* divider);

  Selecting work_;
  TopKScratch trim_;
  DeviceBlock taken_;
  const DeviceBytes zeros_, rest_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_SELECTOR_H_

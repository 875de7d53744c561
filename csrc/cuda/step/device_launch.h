/// One step of a bucket whose memory lies on a device, and a check of its numbers.

#ifndef HVD_SPARSE_CUDA_STEP_DEVICE_LAUNCH_H_
#define HVD_SPARSE_CUDA_STEP_DEVICE_LAUNCH_H_

#include <vector>

#include "csrc/collectives/bucket_spec.h"

namespace hvd_sparse::cuda {

/// A launch, all memory of which lies on the device of the exchange, the states too.
///
/// The struct and its vectors may be destroyed when DeviceExchange::Run returns. All memory that
/// they point to must stay until the stream has done the step.
struct DeviceLaunch : Launch {
  std::vector<GradView> outputs;  ///< receive the result; may be the gradients' memory
  void* former = nullptr;         ///< memory of a block with the capacity of reduced(), see
                                  ///< LaunchNoteFormer; null if the step is never undone
  float* masked = nullptr;        ///< memory of as many values as selected() has room for, see
                                  ///< SettleArgs; null if the step is never undone
};

/// Throws InvalidArgument if a launch does not fit the bucket.
void CheckStep(const BucketSpec& spec, const DeviceLaunch& launch);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_DEVICE_LAUNCH_H_

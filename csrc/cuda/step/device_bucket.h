/// The description of a bucket on a device and of one step of it, and checks of their numbers.

#ifndef HVD_SPARSE_CUDA_STEP_DEVICE_BUCKET_H_
#define HVD_SPARSE_CUDA_STEP_DEVICE_BUCKET_H_

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

/// A unit of selection: a layer, or all of them.
struct DeviceSegment {
  std::int64_t numel;
  std::int64_t max_k;  ///< the largest k of any step; 1 <= max_k <= numel, unless it is empty
};

/// The constants of a bucket, the same on all ranks. Segments lie in the residual one behind the
/// other, and so do gradients; both have the same total length. A segment may hold parts of several
/// gradients and a gradient lie in several segments, and either may be empty.
struct DeviceBucket {
  std::vector<DeviceSegment> segments;
  std::vector<std::int64_t> gradient_numels;
  double slack = 1;      ///< see csrc/collectives/gtopk.cc
  double refresh = 32;   ///< steps between exact refreshes of the thresholds
  std::uint32_t id = 0;  ///< counted from 0, the same on all ranks

  std::int64_t Numel() const;
  std::int64_t MaxAsked() const;  ///< the sum of max_k over segments that are not empty
};

/// The arguments of one step; all memory lies on the device of the exchange.
///
/// The struct and its vectors may be destroyed when DeviceExchange::Run returns. All memory that
/// they point to must stay until the stream has done the step.
struct DeviceLaunch {
  Span<float> residual;              ///< of the whole bucket
  Span<float> velocity = {};         ///< as long, if momentum is corrected; else empty
  float momentum = 0;                ///< factor of the velocity, in [0, 1)
  std::vector<GradView> gradients;   ///< added to the residual; each has its own number type
  std::vector<float> decays;         ///< factors of the residual, one per gradient; finite
  float scale = 1;                   ///< factor of the gradients, as they are added
  std::vector<std::int64_t> ks;      ///< one per segment, 1 <= k <= max_k, the same on all ranks;
                                     ///< that of an empty segment does not matter
  SelectionState* states = nullptr;  ///< one per segment, from step to step; zeros at first
  std::vector<GradView> outputs;     ///< receive the result; may be the gradients' memory
  float output_scale = 1;            ///< factor of the sum: 1 / ranks to average; > 0, finite
  void* former = nullptr;            ///< memory of a block with the capacity of reduced(), see
                                     ///< LaunchNoteFormer; null if the step is never undone
  float* masked = nullptr;           ///< memory of as many values as selected() has room for, see
                                     ///< SettleArgs; null if the step is never undone
};

/// Throws InvalidArgument if the numbers do not fit together.
void CheckBucket(const DeviceBucket& bucket);

/// Throws InvalidArgument if a launch does not fit the bucket.
void CheckStep(const DeviceBucket& bucket, const DeviceLaunch& launch);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_DEVICE_BUCKET_H_

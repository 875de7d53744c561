/// What a bucket on a device is, and what a step brings to it; whether the numbers fit together.

#ifndef HVD_SPARSE_CUDA_DEVICE_BUCKET_H_
#define HVD_SPARSE_CUDA_DEVICE_BUCKET_H_

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

/// A unit of selection: a layer, or all of them.
struct DeviceSegment {
  std::int64_t numel;
  std::int64_t max_k;  ///< the largest k that will come; 1 <= max_k <= numel, unless it is empty
};

/// What never changes about a bucket; the same on all ranks. Segments and gradients lie in the
/// residual one behind the other, and have the same total; either may be cut by the other, or
/// empty.
struct DeviceBucket {
  std::vector<DeviceSegment> segments;
  std::vector<std::int64_t> gradient_numels;
  double slack = 1;      ///< see csrc/collectives/gtopk.cc
  double refresh = 32;   ///< steps between exact refreshes of the thresholds
  std::uint32_t id = 0;  ///< counted from 0, the same on all ranks

  std::int64_t Numel() const;
  std::int64_t MaxAsked() const;  ///< the sum of all max_k
};

/// One step; what it points to lies on the device of the exchange.
///
/// The struct and its vectors may go when DeviceExchange::Run returns. All memory that they point
/// to stays until the stream has done the step.
struct DeviceLaunch {
  Span<float> residual;              ///< of the whole bucket
  Span<float> velocity = {};         ///< as long, where momentum is corrected; else empty
  float momentum = 0;                ///< of the velocity, in [0, 1)
  std::vector<GradView> gradients;   ///< join the residual; each has memory and number type
  std::vector<float> decays;         ///< of the residual, one per gradient; finite
  float scale = 1;                   ///< of the gradients, when they join the residual
  std::vector<std::int64_t> ks;      ///< one per segment, 1 <= k <= max_k, the same on all ranks;
                                     ///< that of an empty segment does not matter
  SelectionState* states = nullptr;  ///< one per segment, from step to step; zeros at first
  std::vector<GradView> outputs;     ///< get the result; may be the memory of the gradients
  float output_scale = 1;            ///< of the sum: 1 / ranks for the average; > 0, finite
  void* former = nullptr;            ///< for a block with the capacity of reduced(): gets what
                                     ///< undoing takes, see LaunchNoteFormer; null: nobody undoes
  float* masked = nullptr;           ///< for as many values as selected() has room for: the same of
                                     ///< the velocity, see Settling
};

/// Throws InvalidArgument if the numbers do not fit together.
void CheckBucket(const DeviceBucket& bucket);

/// Throws InvalidArgument if a launch does not fit the bucket.
void CheckStep(const DeviceBucket& bucket, const DeviceLaunch& launch);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_BUCKET_H_

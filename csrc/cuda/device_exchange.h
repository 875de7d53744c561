/// A whole step of one bucket of one gradient that stays on its device: select, gTop-k, settle,
/// write. The stream is given all of it at once.
///
/// Whether the step is applied is decided on the device, by the reduced block's header, which is
/// the same on all ranks: where a gradient or a sum is not finite, or the gradient could not hold
/// the result, every rank puts back all that it selected and leaves the gradient as it is, so
/// nothing is lost. Fetch brings the header to the CPU, to be read behind a mark.
///
/// Bytes that a transport corrupts in a late round may go unseen by some ranks. What does not
/// belong to the same bucket or step is seen by all.

#ifndef HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_
#define HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_gtopk.h"
#include "csrc/cuda/device_selector.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

struct DeviceBucket {
  std::int64_t numel;    ///< of the gradient
  std::int64_t k;        ///< entries to select, 1 <= k <= numel
  double slack = 1;      ///< see csrc/collectives/gtopk.cc
  double refresh = 32;   ///< steps between exact refreshes of the threshold
  std::uint32_t id = 0;  ///< counted from 0, the same on all ranks
};

/// One step; all memory lies on the device.
struct DeviceLaunch {
  Feedback feedback;      ///< residual: of the whole bucket
  SelectionState* state;  ///< of the bucket, from step to step; zeros at first
  GradView output;        ///< gets the result; may be the gradient's own memory
  float output_scale;     ///< of the sum: 1 / ranks for the average
};

class DeviceExchange {
 public:
  /// The same bucket on all ranks, in the same order. The transport outlives it.
  DeviceExchange(const DeviceBucket& bucket, DeviceTransport* transport);

  /// Gives the stream a step. All steps of an exchange belong to one stream.
  void Run(const DeviceLaunch& launch, cudaStream_t stream);

  /// Gives the stream the copy of the last step's header to pinned memory.
  void Fetch(DeviceBlockHeader* pinned, cudaStream_t stream) const;

  const DeviceBlock& selected() const { return rounds_.selected(); }
  const DeviceBlock& reduced() const { return rounds_.reduced(); }

  /// What Run gives a stream, besides the transport's work.
  int launches() const { return DeviceSelector::kLaunches + rounds_.launches() + kToFinish; }

 private:
  static constexpr int kToFinish = 4;  // check, settle, clear, write

  const DeviceBucket bucket_;
  const int rank_, size_;
  DeviceSelector selector_;
  DeviceGTopK rounds_;
  std::uint32_t step_ = 0;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_

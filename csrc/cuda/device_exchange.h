/// A whole step of a bucket that stays on its device: select, gTop-k, settle, write. Streams are
/// given all of it at once, in as many launches for a thousand layers as for one.
///
/// Whether the step is applied is decided on the device, by the reduced block's header, which is
/// the same on all ranks: where a gradient or a sum is not finite, or a gradient could not hold the
/// result, every rank puts back all that it selected and leaves the gradients as they are, so
/// nothing is lost. Fetch brings the header to the CPU, to be read behind a mark.
///
/// Bytes that a transport corrupts in a late round may go unseen by some ranks. What does not
/// belong to the same bucket or step is seen by all.

#ifndef HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_
#define HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/bucket_tables.h"
#include "csrc/cuda/device_bucket.h"
#include "csrc/cuda/device_gtopk.h"
#include "csrc/cuda/device_selector.h"

namespace hvd_sparse::cuda {

class DeviceExchange {
 public:
  /// The same bucket on all ranks, in the same order. Allocates on the current device all that it
  /// will ever need, and waits for that. The transport outlives it; it outlives the work that it
  /// has given to streams. Throws InvalidArgument where the numbers do not fit together.
  DeviceExchange(const DeviceBucket& bucket, DeviceTransport* transport);

  /// Gives the stream the clearing of its blocks, before the first step: see DeviceGTopK.
  void ClearBlocks(cudaStream_t stream) const { rounds_.ClearBlocks(stream); }

  /// Gives the stream a step, and returns: Select, and Exchange behind it.
  void Run(const DeviceLaunch& launch, cudaStream_t stream);

  /// Gives the stream error feedback and selection, behind the Exchange of the step before. Throws
  /// InvalidArgument, before the stream is given anything, where the launch does not fit the
  /// bucket.
  ///
  /// Which memory, decays and ks a step has goes to the device by a copy from pinned memory, which
  /// is left out where they are those of the step before. The ks set the length of messages: ranks
  /// whose ks differ would make devices wait for ever, so who cannot be sure compares them before
  /// Exchange.
  void Select(const DeviceLaunch& launch, cudaStream_t stream);

  /// Gives the stream all that follows, behind the Select of the same launch.
  void Exchange(const DeviceLaunch& launch, cudaStream_t stream);

  /// Gives the stream the copy of the last step's header to pinned memory.
  void Fetch(DeviceBlockHeader* pinned, cudaStream_t stream) const;

  /// Those of the last step: this rank's entries, which `header->count` says, and the result.
  const DeviceBlock& selected() const { return rounds_.selected(); }
  const DeviceBlock& reduced() const { return rounds_.reduced(); }

  /// What Run gives a stream, besides the transport's work and the copy of what has changed:
  /// kernels, and clearings of memory. Not more for many segments than for one.
  int launches() const { return DeviceSelector::kLaunches + rounds_.launches() + kToFinish; }

 private:
  static constexpr int kToFinish = 4;  // check, settle, clear, write

  const DeviceBucket bucket_;
  const int rank_, size_;
  BucketTables tables_;
  DeviceSelector selector_;
  DeviceGTopK rounds_;
  std::uint32_t step_ = 0;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_EXCHANGE_H_

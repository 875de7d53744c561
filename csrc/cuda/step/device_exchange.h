/// A whole step of a bucket that stays on its device: select, gTop-k, settle, write. All of it is
/// enqueued at once, in as many launches for a thousand layers as for one.
///
/// The device decides whether the step is applied, by the reduced block's header, which is the same
/// on all ranks: if a gradient or a sum is not finite, or a gradient could not hold the result,
/// every rank puts back all that it selected and leaves the gradients as they are, so nothing is
/// lost. Fetch copies the header to the CPU, which can read it once the stream has done that.
///
/// Bytes that a transport corrupts in a late round may go unnoticed on some ranks. A block of
/// another bucket or step is noticed on all.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/step/bucket_tables.h"
#include "csrc/cuda/step/device_gtopk.h"
#include "csrc/cuda/step/device_selector.h"

namespace hvd_sparse::cuda {

class DeviceExchange {
 public:
  /// Prepares the steps of a bucket, selected by `gaussian`. The bucket is the same on all ranks,
  /// and so is `id`, which counts the buckets from 0. Allocates all memory that it will ever need
  /// on the current device, and waits for that. The transport must outlive this object, and this
  /// object the work that it enqueues. Throws InvalidArgument if the bucket's numbers do not fit
  /// together.
  DeviceExchange(const BucketSpec& spec, std::uint32_t id, DeviceTransport* transport);

  /// Enqueues the clearing of its blocks, which precedes the first step: see DeviceGTopK.
  void ClearBlocks(cudaStream_t stream) const { rounds_.ClearBlocks(stream); }

  /// Enqueues a whole step: Select, then Exchange.
  void Run(const DeviceLaunch& launch, cudaStream_t stream);

  /// Enqueues error feedback and selection, after the Exchange of the step before. Throws
  /// InvalidArgument, before anything is enqueued, if the launch does not fit the bucket.
  ///
  /// The addresses, decays and ks of a step are copied to the device from pinned memory, unless
  /// they are those of the step before. The ks set the length of messages: if they differ between
  /// ranks, devices wait for ever, so callers that cannot be sure must compare them before
  /// Exchange.
  void Select(const DeviceLaunch& launch, cudaStream_t stream);

  /// Enqueues the rest of the step, after the Select of the same launch.
  void Exchange(const DeviceLaunch& launch, cudaStream_t stream);

  /// Enqueues the copy of the last step's reduced header to pinned memory.
  void Fetch(DeviceBlockHeader* pinned, cudaStream_t stream) const;

  /// The blocks of the last step: this rank's entries, `header->count` of them, and the result.
  const DeviceBlock& selected() const { return rounds_.selected(); }
  const DeviceBlock& reduced() const { return rounds_.reduced(); }

  /// Returns how many kernels and clearings of memory Run enqueues, besides the transport's work
  /// and the copy of what has changed. There are no more for many segments than for one.
  int launches() const { return DeviceSelector::kLaunches + rounds_.launches() + kToFinish; }

 private:
  static constexpr int kToFinish = 4;  // check, settle, clear, write

  const BucketSpec spec_;
  const std::uint32_t id_;
  const int rank_, size_;
  BucketTables tables_;
  DeviceSelector selector_;
  DeviceGTopK rounds_;
  std::uint32_t step_ = 0;
};

}  // namespace hvd_sparse::cuda

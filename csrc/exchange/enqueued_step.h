/// A step that is enqueued on a device as a whole (route kStep): Select and Reduce return before
/// the device has done it, and Arrived waits for its end. See csrc/collectives/device_step.h.

#pragma once

#include <memory>

#include "csrc/collectives/device_step.h"
#include "csrc/exchange/bucket_step.h"

namespace hvd_sparse {

class EnqueuedStep final : public BucketStep {
 public:
  /// Allocates the memory that all steps need on the network's device. `record` and the network
  /// outlive this object.
  EnqueuedStep(StepRecord* record, GpuCollectives* gpu_collectives);

  void Select(int rank, const Kernels& kernels, const Mark* ready) override;

  /// Compares headers with all ranks before it enqueues the exchange; see DeviceStep::Exchange for
  /// when it waits.
  bool Reduce(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) override;

  std::shared_ptr<const Mark> Written(const Kernels& kernels) override;
  bool Arrived(double seconds) override;

  /// Works at any time, whether the step has arrived or not.
  void PutBack(const Kernels& kernels) override;

 private:
  StepRecord& record_;
  const std::unique_ptr<DeviceStep> device_step_;
  std::shared_ptr<const Mark> written_;  // after Reduce, the end of the step
};

}  // namespace hvd_sparse

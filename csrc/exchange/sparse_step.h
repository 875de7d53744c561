/// A step on this rank's own residual: selected entries move to a block, the collective
/// sums the blocks of all ranks, and what was not delivered returns.
///
/// If devices are connected, their rounds may replace the collective (route kRounds).

#pragma once

#include <cstdint>
#include <memory>

#include "csrc/exchange/block_exchange.h"
#include "csrc/exchange/bucket_step.h"
#include "csrc/exchange/segments.h"

namespace hvd_sparse {

class SparseStep final : public BucketStep {
 public:
  SparseStep(StepRecord* record, NodePlace place);

  void PutBack(const Kernels& kernels) override;
  void ReleaseDevices() override { device_reduce_.reset(); }

 private:
  std::int64_t Take(const Kernels& kernels) override;
  void Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) override;

  BlockExchange blocks_;
  const Segments segments_;
  std::unique_ptr<DeviceReduce> device_reduce_;  // if not null, replaces the collective
};

}  // namespace hvd_sparse

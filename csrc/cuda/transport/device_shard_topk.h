/// Shard top-k over a transport between devices: entries go to the owners of their shards, and what
/// these take goes to all ranks, from device to device. What a rank does as an owner, it does on
/// the CPU: its residual takes part.
///
/// Messages are as long as they have entries, whose counts the ranks tell each other before each of
/// the two rounds.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/transport/device_round.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class DeviceShardTopK final : public DeviceReduce {
 public:
  /// `transport` moves memory of `device`; it and `room` must outlive this object.
  DeviceShardTopK(int device, GpuTransport* transport, MessageRoom* room)
      : device_(device), gpu_transport_(*transport), counted_(transport), room_(*room) {}

  void Run(SparseBlock* block, CollectiveContext& ctx) override;

 private:
  std::vector<SparseBlock>& Swap(SparseBlock* block, const std::vector<Range>& to,
                                 const std::vector<std::int64_t>& counts, const std::string& name,
                                 Work* work, CollectiveContext* ctx);

  const int device_;
  GpuTransport& gpu_transport_;
  CountedTransport counted_;
  MessageRoom& room_;
};

}  // namespace hvd_sparse::cuda

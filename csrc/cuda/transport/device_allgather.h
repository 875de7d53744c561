/// Allgather over a transport between devices: every rank's block goes to every rank, and each
/// device adds them up pair by pair, in the order of CollectiveContext::SumInRankOrder.
///
/// Messages are as long as the blocks, whose counts the ranks tell each other first. Sent by each
/// rank: 8 bytes for each of its entries to each other rank.

#pragma once

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/transport/device_round.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class DeviceAllgather final : public DeviceReduce {
 public:
  /// `transport` moves memory of `device`; it and `room` must outlive this object.
  DeviceAllgather(int device, GpuTransport* transport, MessageRoom* room)
      : device_(device), gpu_transport_(*transport), counted_(transport), room_(*room) {}

  void Run(SparseBlock* block, CollectiveContext& ctx) override;

 private:
  const int device_;
  GpuTransport& gpu_transport_;
  CountedTransport counted_;
  MessageRoom& room_;
};

}  // namespace hvd_sparse::cuda

/// gTop-k over a transport between devices, for blocks that lie in memory of the CPU: they are
/// copied to the device, reduced in all rounds in stream order, and copied back.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/transport/device_gtopk.h"
#include "csrc/cuda/transport/device_round.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class TransportGTopK final : public DeviceReduce {
 public:
  /// `transport` moves memory of `device`, and must outlive this object.
  TransportGTopK(int device, GpuTransport* transport)
      : device_(device), gpu_transport_(*transport), counted_(transport) {}

  void Run(SparseBlock* block, CollectiveContext& ctx) override;

 private:
  void Fit(std::int64_t numel, std::int64_t k, const CollectiveOptions& options);

  const int device_;
  GpuTransport& gpu_transport_;
  CountedTransport counted_;

  // The arguments for which rounds_ was made.
  std::int64_t numel_ = 0, k_ = 0;
  CollectiveOptions options_;
  std::unique_ptr<DeviceGTopK> rounds_;

  // Pinned memory for what is sent, and for the result, which takes as much room as there can be
  // entries: only the device will know how many.
  struct Staged {
    DeviceBlockHeader* header;
    Index* indices;
    float* values;
  };
  std::unique_ptr<PinnedBytes> staging_;
  Staged sent_ = {}, made_ = {};
};

}  // namespace hvd_sparse::cuda

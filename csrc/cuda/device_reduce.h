/// gTop-k over a transport between devices, of blocks that lie in memory of the CPU: up to the
/// device, all rounds in the order of a stream, and down again.

#ifndef HVD_SPARSE_CUDA_DEVICE_REDUCE_H_
#define HVD_SPARSE_CUDA_DEVICE_REDUCE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "csrc/collectives/device_network.h"
#include "csrc/cuda/counted_transport.h"
#include "csrc/cuda/device_gtopk.h"

namespace hvd_sparse::cuda {

class TransportGTopK final : public DeviceReduce {
 public:
  /// Waits until a stream has done what it was given, for the sake of `what`; throws what ended the
  /// exchange meanwhile.
  using Await = std::function<void(cudaStream_t stream, const std::string& what)>;

  /// `transport` outlives it, and moves memory of `device`; `name` is what it goes by.
  TransportGTopK(int device, DeviceTransport* transport, std::string name, Await await)
      : device_(device), counted_(transport), name_(std::move(name)), await_(std::move(await)) {}

  void Run(SparseBlock* block, CollectiveContext& ctx) override;

 private:
  void Fit(std::int64_t numel, std::int64_t k, double slack);
  DeviceBlockHeader Move(const SparseBlock& selected, std::int32_t bad_rank,
                         const std::string& what, SparseBlock* reduced);

  const int device_;
  CountedTransport counted_;
  const std::string name_;
  const Await await_;

  // For what the rounds were made.
  std::int64_t numel_ = 0, k_ = 0;
  double slack_ = 0;
  std::unique_ptr<DeviceGTopK> rounds_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_REDUCE_H_

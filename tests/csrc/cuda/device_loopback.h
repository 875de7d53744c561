/// Thread ranks whose messages may lie in device memory, standing in for a CUDA-aware MPI. Bytes
/// are copied through the CPU.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_LOOPBACK_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_LOOPBACK_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/cuda/base/check.h"

namespace hvd_sparse {

class DeviceLoopback final : public LoopbackCommunicator {
 public:
  /// Called before each transfer on the rank that makes it; may throw.
  using Before = std::function<void(Communicator& comm, const std::string& what)>;

  DeviceLoopback(std::shared_ptr<LoopbackWorld> world, int rank, Before before = nullptr)
      : LoopbackCommunicator(std::move(world), rank), before_(std::move(before)) {}

  std::string DeviceMemoryProblem() const override { return ""; }

  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& what) override {
    if (before_) before_(*this, what);
    std::vector<std::vector<std::uint8_t>> memory;
    std::vector<Outgoing> outgoing(out.begin(), out.end());
    for (Outgoing& message : outgoing) {
      memory.emplace_back(static_cast<std::size_t>(message.bytes));
      Copy(memory.back().data(), message.data, message.bytes);
      message.data = memory.back().data();
    }
    std::vector<Incoming> incoming(in.begin(), in.end());
    for (Incoming& message : incoming) {
      memory.emplace_back(static_cast<std::size_t>(message.capacity));
      message.data = memory.back().data();
    }
    LoopbackCommunicator::Transfer(outgoing, incoming, what);
    for (std::int64_t i = 0; i < in.size; ++i) {
      in[i].bytes = incoming[static_cast<std::size_t>(i)].bytes;
      Copy(in[i].data, incoming[static_cast<std::size_t>(i)].data, in[i].bytes);
    }
  }

 private:
  static void Copy(void* to, const void* from, std::int64_t bytes) {
    if (bytes == 0) return;
    cuda::Check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault), "copy");
    cuda::Check(cudaDeviceSynchronize(), "finish");  // other streams do not wait for the copy
  }

  const Before before_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_LOOPBACK_H_

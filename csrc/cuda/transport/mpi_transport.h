/// Sends blocks of a device over the exchange's own communicator, if that accepts device memory: a
/// CUDA-aware MPI moves them over whatever connects the devices.
///
/// MPI knows no streams. So the CPU waits until a stream has reached the messages, passes their
/// addresses to MPI, and waits until they have been moved; work that is enqueued afterwards begins
/// after that. The CPU thus waits for its device once per call, but no device ever waits for a
/// peer, so ranks may share one, and none has to be released when a peer dies.
///
/// Waits have the same limits as all waits of an exchange, and watch the other ranks, too. The call
/// throws the error that ended a wait, and nothing more is enqueued; MPI may still use the memory
/// of the message, which is therefore never freed.
///
/// A stream that is being captured into a graph is refused: a graph cannot hold what the CPU does.
///
/// No GPU has run this: it was tested with ranks that are threads.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "csrc/comm/communicator.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class MpiTransport final : public GpuTransport {
 public:
  /// Connects the ranks of `comm`, which accepts device memory and must outlive this object.
  /// Nothing else may use `comm` during Move.
  MpiTransport(Communicator* comm, int device) : GpuTransport(comm, device) {}

  const char* Name() const override { return "MPI"; }

  /// Throws InvalidArgument if the stream is being captured, Timeout, or the error that ended the
  /// exchange.
  void Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) override;

  bool HoldsMemory() const override { return is_moving_; }

 private:
  std::string AwaitedRanks() const override;

  bool is_moving_ = false;  // MPI has a message; stays true after a failed one
};

}  // namespace hvd_sparse::cuda

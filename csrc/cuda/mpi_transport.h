/// Blocks of a device over the exchange's own communicator, where that takes memory of devices: an
/// MPI that is CUDA-aware, which then moves them by whatever connects the devices.
///
/// MPI knows no streams. So the CPU waits until a stream has come to a message, hands MPI where it
/// lies, and waits until it has been moved; what the stream is given afterwards begins behind that.
/// That is one wait of the CPU for each message, and for the device alone: no device ever waits for
/// a peer, so ranks may share one, and nothing has to be freed when a peer dies.
///
/// Waits have the limits and the eye on the other ranks of all waits of an exchange. What ends one
/// is thrown by the call, and the stream is given nothing behind it; MPI may still use the memory
/// of the message, which stays for that.
///
/// A stream that is being captured into a graph is refused: no graph holds what the CPU does.
///
/// No GPU has run this: it was tested with ranks that are threads.

#ifndef HVD_SPARSE_CUDA_MPI_TRANSPORT_H_
#define HVD_SPARSE_CUDA_MPI_TRANSPORT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "csrc/comm/communicator.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/network_transport.h"

namespace hvd_sparse::cuda {

class MpiTransport final : public NetworkTransport {
 public:
  /// Between the ranks of `comm`, which takes memory of devices and outlives it. Nobody else uses
  /// it while a message is given.
  MpiTransport(Communicator* comm, int device, const WaitLimits& limits)
      : NetworkTransport(comm, device, limits) {}

  const char* Name() const override { return "MPI"; }

  /// Throws InvalidArgument where the stream is being captured; what ended the exchange; Timeout.
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override;

  bool HoldsMemory() const override { return is_moving_; }

 private:
  std::string Awaited() const override;

  bool is_moving_ = false;  // MPI has a message; still so after one that failed
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_MPI_TRANSPORT_H_

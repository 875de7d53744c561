/// The trial of a transport before it is relied on: messages of known bytes.

#pragma once

#include <cstdint>

#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

class Trial {
 public:
  /// Allocates memory of the current device, before the `size` ranks connect: see MessageRoom.
  explicit Trial(int size);

  /// Waits for its work: destroy the transport first, which ends the wait for other ranks.
  ~Trial() { (void)cudaStreamSynchronize(stream_.get()); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  /// Sends messages to up to kMessagesAtOnce ranks after this one and receives as many from those
  /// before it, all at the same time, and compares what arrives. The message to the next rank is
  /// long, since networks treat long ones in another way. Collective.
  ///
  /// Throws, on this rank alone, ExchangeFailed if a message arrives changed or the transport meets
  /// an error, and Timeout after kTrialSeconds.
  void Run(GpuTransport* transport);

 private:
  const int peers_;
  PinnedArray<std::uint8_t> staged_;
  const DeviceBytes sent_, received_;
  const Stream stream_;
};

}  // namespace hvd_sparse::cuda

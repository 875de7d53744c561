/// Memory of a device that messages come from and go to.

#ifndef HVD_SPARSE_CUDA_MESSAGE_MEMORY_H_
#define HVD_SPARSE_CUDA_MESSAGE_MEMORY_H_

#include <cstddef>

#include "csrc/cuda/device_memory.h"
#include "csrc/cuda/device_transport.h"

namespace hvd_sparse::cuda {

class MessageBytes final : public DeviceBytes {
 public:
  /// Of messages over a transport, which outlives it.
  MessageBytes(const DeviceTransport& transport, std::size_t bytes)
      : DeviceBytes(bytes), transport_(transport) {}

  /// It stays where a message that failed may still use it.
  ~MessageBytes() {
    if (transport_.HoldsMemory()) Leave();
  }

 private:
  const DeviceTransport& transport_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_MESSAGE_MEMORY_H_

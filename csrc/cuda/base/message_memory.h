/// Device memory that messages are sent from and received in.

#ifndef HVD_SPARSE_CUDA_BASE_MESSAGE_MEMORY_H_
#define HVD_SPARSE_CUDA_BASE_MESSAGE_MEMORY_H_

#include <cstddef>

#include "csrc/cuda/base/device_memory.h"
#include "csrc/cuda/base/device_transport.h"

namespace hvd_sparse::cuda {

class MessageBytes final : public DeviceBytes {
 public:
  /// Allocates memory for messages over `transport`, which must outlive this object.
  MessageBytes(const DeviceTransport& transport, std::size_t bytes)
      : DeviceBytes(bytes), transport_(transport) {}

  /// Frees the memory unless a failed message may still use it.
  ~MessageBytes() {
    if (transport_.HoldsMemory()) Leave();
  }

 private:
  const DeviceTransport& transport_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_MESSAGE_MEMORY_H_

/// A transport that counts its calls and bytes since the last reset.

#ifndef HVD_SPARSE_CUDA_TRANSPORT_COUNTED_TRANSPORT_H_
#define HVD_SPARSE_CUDA_TRANSPORT_COUNTED_TRANSPORT_H_

#include <cstdint>

#include "csrc/cuda/base/device_transport.h"

namespace hvd_sparse::cuda {

class CountedTransport : public DeviceTransport {
 public:
  /// `transport` must outlive this object.
  explicit CountedTransport(DeviceTransport* transport) : transport_(*transport) {}

  int Rank() const override { return transport_.Rank(); }
  int Size() const override { return transport_.Size(); }

  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override {
    ++calls_;
    transport_.Exchange(peer, send, recv, bytes, stream);
    if (send != nullptr) sent_ += bytes;
    if (recv != nullptr) received_ += bytes;
  }

  bool HoldsMemory() const override { return transport_.HoldsMemory(); }

  void Reset() { calls_ = sent_ = received_ = 0; }

  /// Calls of Exchange, including one that failed.
  std::int64_t calls() const { return calls_; }
  std::int64_t sent() const { return sent_; }
  std::int64_t received() const { return received_; }

 private:
  DeviceTransport& transport_;
  std::int64_t calls_ = 0, sent_ = 0, received_ = 0;  // the latter two in bytes
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TRANSPORT_COUNTED_TRANSPORT_H_

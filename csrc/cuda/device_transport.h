/// How blocks of a device reach other ranks: in the order of a stream, without the CPU.
///
/// Every call only gives a stream work. When that work has come, bytes move between the memory of
/// this rank's device and that of a peer; whatever the stream is given afterwards begins behind it.
/// So a collective can be given to a stream as a whole, and nobody waits between its rounds.
///
/// All messages of a call have the same length on both sides, which both know beforehand: a device
/// block is sent as a whole, with its count in its first bytes (device_block.h).

#ifndef HVD_SPARSE_CUDA_DEVICE_TRANSPORT_H_
#define HVD_SPARSE_CUDA_DEVICE_TRANSPORT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hvd_sparse::cuda {

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  /// This rank, 0 <= Rank() < Size().
  virtual int Rank() const = 0;
  virtual int Size() const = 0;

  /// Swaps messages with a peer, in the order of `stream`: `bytes` bytes at `send` go to it, and as
  /// many from it to `recv`. The two do not overlap. Where one of them is null, messages go one way
  /// only; the peer then passes null for the other.
  ///
  /// Between two ranks, calls match in the order in which both make them. `bytes` > 0, and the same
  /// on both sides; `peer` is another rank.
  ///
  /// Returns once the work is given, or throws ExchangeFailed where it cannot be. What goes wrong
  /// later shows where the stream is waited for.
  virtual void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                        cudaStream_t stream) = 0;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_TRANSPORT_H_

/// How blocks of a device reach other ranks: in the order of a stream.
///
/// Every call gives a stream a message: behind what it was given before, bytes move between the
/// memory of this rank's device and that of a peer; what it is given afterwards begins behind them.
/// So a collective can be given to a stream as a whole. Whether the CPU waits between its rounds is
/// the transport's affair: one gives the stream the work and returns at once (nccl_transport.h),
/// another returns when the message has been moved (mpi_transport.h).
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
  /// Returns once the work is given, or done, or throws ExchangeFailed where it cannot be. What
  /// goes wrong later shows where the stream is waited for.
  virtual void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                        cudaStream_t stream) = 0;

  /// Whether memory of a message that failed may still be read or written: then it has to stay, for
  /// ever.
  virtual bool HoldsMemory() const { return false; }
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_TRANSPORT_H_

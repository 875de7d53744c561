/// The interface by which blocks of a device reach other ranks, in stream order.
///
/// Every call enqueues a message on a stream: after all earlier work of the stream, bytes move
/// between the memory of this rank's device and that of a peer; later work begins after them. So a
/// collective can be enqueued as a whole. Whether the CPU waits between its rounds depends on the
/// transport: one enqueues the message and returns at once (nccl_transport.h), another returns when
/// it has been moved (mpi_transport.h).
///
/// The messages of a call have the same length in both directions, which both ranks know
/// beforehand: a device block is sent as a whole, with its count in its first bytes
/// (device_block.h).

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/base/memory.h"

namespace hvd_sparse::cuda {

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  /// This rank, 0 <= Rank() < Size().
  virtual int Rank() const = 0;
  virtual int Size() const = 0;

  /// Swaps messages with a peer, in the order of `stream`: sends `bytes` bytes at `send`, and
  /// receives as many at `recv`. The two do not overlap. If `send` or `recv` is null, there is no
  /// message in that direction; the peer then passes null for the other.
  ///
  /// Between two ranks, calls match in the order in which both make them. `bytes` > 0, and the same
  /// on both sides; `peer` is another rank.
  ///
  /// Returns once the message is enqueued, or moved; throws ExchangeFailed if it cannot be. Later
  /// failures show when the stream is waited for.
  virtual void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                        cudaStream_t stream) = 0;

  /// Returns true if memory of a failed message may still be read or written: then it must never be
  /// freed.
  virtual bool HoldsMemory() const { return false; }
};

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

class CountedTransport final : public DeviceTransport {
 public:
  /// `transport` must outlive this object.
  explicit CountedTransport(DeviceTransport* transport) : transport_(*transport) {}

  int Rank() const override { return transport_.Rank(); }
  int Size() const override { return transport_.Size(); }

  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override {
    transport_.Exchange(peer, send, recv, bytes, stream);
    if (send != nullptr) sent_ += bytes;
    if (recv != nullptr) received_ += bytes;
  }

  bool HoldsMemory() const override { return transport_.HoldsMemory(); }

  void Reset() { sent_ = received_ = 0; }

  std::int64_t sent() const { return sent_; }
  std::int64_t received() const { return received_; }

 private:
  DeviceTransport& transport_;
  std::int64_t sent_ = 0, received_ = 0;  // bytes
};

}  // namespace hvd_sparse::cuda

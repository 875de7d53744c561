/// The interface by which blocks of a device reach other ranks, in stream order.
///
/// Every call enqueues messages on a stream: after all earlier work of the stream, bytes move
/// between the memory of this rank's device and that of others; later work begins after them. So a
/// collective can be enqueued as a whole. Whether the CPU waits between its rounds depends on the
/// transport: one enqueues the messages and returns at once (nccl_transport.h), another returns
/// when they have been moved (mpi_transport.h).
///
/// Both ranks know the length of a message beforehand.

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/cuda/base/memory.h"

namespace hvd_sparse::cuda {

/// A message to another rank, and one from it, of bytes on this rank's device.
struct DeviceOut {
  int peer;
  const void* data;
  std::int64_t bytes;
};
struct DeviceIn {
  int peer;
  void* data;
  std::int64_t bytes;
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  /// This rank, 0 <= Rank() < Size().
  virtual int Rank() const = 0;
  virtual int Size() const = 0;

  /// Moves messages, all at the same time, in the order of `stream`: at most kMessagesAtOnce in
  /// either direction, and one to and one from a peer. What is received overlaps nothing.
  ///
  /// Between two ranks, messages match in the order of the calls. `bytes` > 0, and the same on both
  /// sides; `peer` is another rank.
  ///
  /// Returns once the messages are enqueued, or moved; throws ExchangeFailed if they cannot be.
  /// Later failures show when the stream is waited for.
  virtual void Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) = 0;

  /// Moves a message of `bytes` bytes to a peer, and one as long from it. If `send` or `recv` is
  /// null, there is none in that direction.
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes, cudaStream_t stream) {
    const DeviceOut out{peer, send, bytes};
    const DeviceIn in{peer, recv, bytes};
    Move({&out, send == nullptr ? 0 : 1}, {&in, recv == nullptr ? 0 : 1}, stream);
  }

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

  void Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) override {
    transport_.Move(out, in, stream);
    for (const DeviceOut& message : out) sent_ += message.bytes;
    for (const DeviceIn& message : in) received_ += message.bytes;
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

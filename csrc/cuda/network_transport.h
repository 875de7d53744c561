/// A transport as an exchange uses it: by a name, on streams of its own, and with waits of the CPU
/// that have limits and end with the exchange.

#ifndef HVD_SPARSE_CUDA_NETWORK_TRANSPORT_H_
#define HVD_SPARSE_CUDA_NETWORK_TRANSPORT_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/communicator.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/device_transport.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {

/// Calls that give work come from one thread at a time, Check from any.
class NetworkTransport : public DeviceTransport {
 public:
  NetworkTransport(const NetworkTransport&) = delete;
  NetworkTransport& operator=(const NetworkTransport&) = delete;

  int Rank() const override { return comm_.Rank(); }
  int Size() const override { return comm_.Size(); }

  /// What messages go over, as users read it.
  virtual const char* Name() const = 0;

  /// A stream of this transport's own, for exchanges that run beside other streams.
  cudaStream_t stream() const { return stream_->get(); }

  /// Another one, for what comes before messages and waits for no rank.
  cudaStream_t select_stream() const { return select_stream_->get(); }

  /// For whose sake messages are given from now on: for warnings and errors.
  void Serve(std::string what) { served_ = std::move(what); }

  /// Waits on the CPU until a stream has done what it was given. Throws what ended the exchange,
  /// or Timeout after HVD_SPARSE_TIMEOUT; `what` says for whose sake.
  void Await(cudaStream_t stream, const std::string& what);

  /// A wait that can be interrupted: its limits count from when it is made. For any thread.
  class Waiting {
   public:
    Waiting(NetworkTransport* transport, std::string what);

    /// Looks until `done`, at most so many seconds; returns whether it is. Throws as Await does,
    /// also where it was the end of the exchange that let a stream pass.
    bool For(double seconds, const std::function<bool()>& done);

   private:
    NetworkTransport& transport_;
    const std::string what_;
    Patience patience_;
  };

  /// Throws what ended the exchange, if anything did.
  virtual void Check() { comm_.Check(); }

 protected:
  /// Between the ranks of `comm`, which outlives it, for memory of `device`.
  NetworkTransport(Communicator* comm, int device, const WaitLimits& limits);

  /// Who is waited for where a stream is, as "rank ..." in warnings and errors.
  virtual std::string Awaited() const = 0;

  /// `error` has ended a wait, which is about to throw it.
  virtual void GaveUp(const Error& /*error*/) {}

  /// Throws InvalidArgument unless there is such a peer, and something to be sent.
  void RequireMessage(int peer, std::int64_t bytes) const;

  /// What a message to or from that peer is about.
  std::string WhatWith(int peer) const;

  void WaitUntil(const std::function<bool()>& done, const std::string& what);

  Communicator& comm() const { return comm_; }
  int device() const { return device_; }

 private:
  Communicator& comm_;
  const int device_;
  const WaitLimits limits_;
  std::string served_ = "messages";
  std::unique_ptr<Stream> stream_, select_stream_;
  std::unique_ptr<Event> mark_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_NETWORK_TRANSPORT_H_

/// Sends blocks of a device over NCCL, from GPU to GPU, in stream order.
///
/// Each exchange has an NCCL communicator, made when all its ranks have agreed (nccl_option.h). It
/// does not block: while a call waits on the CPU (for peers that are not there yet), it watches the
/// exchange's communicator. NCCL itself notices neither dead ranks nor ended exchanges: its kernels
/// would spin on the device for ever, and with them all code that waits for a stream, in this
/// package or not. So a thread checks every 50 ms whether the exchange has ended, by a lost rank or
/// Fail, or an operation exceeds its limit, and then aborts NCCL's communicator, and with it the
/// kernels. While a call of NCCL's itself waits for CUDA, it only tells the other ranks.
///
/// Work that was enqueued after an aborted message runs all the same, on undefined data: callers
/// must wait by Await before they rely on what was received.
///
/// CUDA graphs: Move can be captured, once a first call outside of a capture has connected the same
/// peers (that allocates, which a capture must not).
/// NCCL may launch from a thread of its own, whose calls break no capture. But a capture with
/// cudaStreamCaptureModeGlobal is broken by unsafe calls of any other thread of the process, so
/// capture with cudaStreamCaptureModeThreadLocal. Await cannot be captured. Either all ranks
/// capture, or none.
///
/// It was tested against a library that stands in for NCCL, and between two ranks on one GPU.

#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/communicator.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/gpu_transport.h"
#include "csrc/cuda/transport/nccl_library.h"

namespace hvd_sparse::cuda {

class NcclTransport final : public GpuTransport {
 public:
  /// Connects the ranks of `comm`, which have agreed on `id`; a collective call. `comm` must
  /// outlive this object.
  ///
  /// Throws the error that ended the exchange, and NCCL's. The transport is on trial.
  NcclTransport(const nccl::Library& library, const nccl::UniqueId& id, Communicator* comm,
                int device);

  /// Finalises NCCL's communicator if all is well; otherwise, or after two seconds, aborts it.
  ~NcclTransport() override;

  const char* Name() const override { return "NCCL"; }

  /// Also throws the error that ended the exchange, and InvalidArgument if a capture uses a peer
  /// for the first time.
  void Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) override;

  /// Also throws an error that NCCL has met.
  void Check() override;

 private:
  void ThrowIfEnded();
  void RequireConnected(int peer, cudaStream_t stream);
  void Group(const std::string& what, const std::function<void()>& calls);
  void MustSucceed(nccl::Result result, const char* call, const std::string& what);
  bool IsReady(const std::string& what);
  bool Poll(const std::string& what);
  void CheckExchange();
  std::string AwaitedRanks() const override;
  void OnWaitFailed(const Error& error) override { End(error, true); }
  void End(const Error& error, bool tell);
  void Watch();

  const nccl::Library& library_;
  std::vector<bool> connected_;  // by peer

  std::mutex mutex_;  // guards nccl_, and every call of NCCL, which may wait for CUDA
  nccl::Comm nccl_ = nullptr;

  std::mutex ending_;  // guards the following; who holds it calls neither NCCL nor CUDA
  std::optional<Error> ended_;
  bool closing_ = false;
  std::condition_variable wake_;
  std::thread watcher_;
};

}  // namespace hvd_sparse::cuda

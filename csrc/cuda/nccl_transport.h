/// Blocks of a device over NCCL: from GPU to GPU, in the order of a stream.
///
/// A communicator of NCCL's for each exchange, made when all its ranks have agreed
/// (nccl_agreement.h). It does not block: whatever a call waits for on the CPU (peers that are not
/// there yet), it waits for with an eye on the exchange's communicator. NCCL itself knows neither
/// dead ranks nor ended exchanges: its kernels would spin on the device for ever, and with them
/// everybody who waits for a stream, in this package or not. So a thread looks every 50 ms whether
/// the exchange has ended, by a lost rank or Fail, and then ends the communicator, and with it the
/// kernels.
///
/// What a stream was given behind an ended message runs all the same, on memory with rubbish: who
/// uses what was received waits by Await before it counts.
///
/// CUDA graphs: Exchange, AllGather, Follow and LetFollow can be captured, once a first call
/// outside of a capture has connected the same peers (that allocates, which a capture must not).
/// NCCL may launch from a thread of its own: no call of that thread breaks a capture, but one of
/// cudaStreamCaptureModeGlobal is broken by anything that others of the process do meanwhile, so
/// capture with cudaStreamCaptureModeThreadLocal. Await is not for captures. All ranks capture, or
/// none.
///
/// No GPU has run this: it was tested against a library that stands in for NCCL.

#ifndef HVD_SPARSE_CUDA_NCCL_TRANSPORT_H_
#define HVD_SPARSE_CUDA_NCCL_TRANSPORT_H_

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
#include "csrc/comm/patience.h"
#include "csrc/cuda/device_transport.h"
#include "csrc/cuda/nccl_library.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {

/// Calls that give work come from one thread at a time, Check from any.
class NcclTransport final : public DeviceTransport {
 public:
  /// Collective over the ranks of `comm`, which have agreed on `id`, and which outlives this.
  ///
  /// Throws what ended the exchange; what NCCL says against it ends the exchange on all ranks.
  NcclTransport(const nccl::Library& library, const nccl::UniqueId& id, Communicator* comm,
                int device, const WaitLimits& limits);

  /// Takes leave of NCCL where all is well, else, or after two seconds, ends what is under way.
  ~NcclTransport() override;

  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int Rank() const override { return comm_.Rank(); }
  int Size() const override { return comm_.Size(); }

  /// Throws what ended the exchange, too; InvalidArgument where a capture meets a peer for the
  /// first time.
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override;

  /// all[rank * bytes ...] = own of each rank. Blocks have a fixed capacity and say themselves how
  /// many entries they hold, so ranks with differing counts need no message about them.
  void AllGather(const void* own, void* all, std::int64_t bytes, cudaStream_t stream);

  /// A stream of this transport's own, for exchanges that run beside `other` streams.
  cudaStream_t stream() const { return stream_->get(); }

  /// stream() goes on behind what `other` has been given so far.
  void Follow(cudaStream_t other);

  /// What `other` is given from now on begins behind what stream() has been given so far.
  void LetFollow(cudaStream_t other);

  /// Waits on the CPU until a stream has done what it was given. Throws what ended the exchange,
  /// or Timeout after HVD_SPARSE_TIMEOUT; `what` says for whose sake.
  void Await(cudaStream_t stream, const std::string& what);

  /// A wait that can be interrupted: its limits count from when it is made. For any thread.
  class Waiting {
   public:
    Waiting(NcclTransport* transport, std::string what);

    /// Looks until `done`, at most so many seconds; returns whether it is. Throws as Await does,
    /// also where it was the end of the exchange that let a stream pass.
    bool For(double seconds, const std::function<bool()>& done);

   private:
    NcclTransport& transport_;
    const std::string what_;
    Patience patience_;
  };

  /// Throws what ended the exchange, if anything did, or what NCCL has met since.
  void Check();

 private:
  static constexpr int kAll = -1;

  void RequireConnected(int peer, cudaStream_t stream);
  void Group(int peer, const std::string& what, const std::function<void()>& calls);
  void MustSucceed(nccl::Result result, const char* call, const std::string& what);
  bool IsReady(const std::string& what);
  void WaitUntil(const std::function<bool()>& done, const std::string& what);
  std::string Others() const;
  void End(const Error& error, bool tell);
  void Watch();

  const nccl::Library& library_;
  Communicator& comm_;
  const int device_;
  const WaitLimits limits_;
  std::vector<bool> connected_;  // by peer, and to all at last
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> mark_;

  std::mutex mutex_;  // guards the following, and every call of NCCL's
  nccl::Comm nccl_ = nullptr;
  std::optional<Error> ended_;
  bool closing_ = false;
  std::condition_variable wake_;
  std::thread watcher_;
};

/// A transport, or why the ranks have none.
struct NcclConnection {
  std::unique_ptr<NcclTransport> transport;
  std::string problem;
  bool declined = false;  ///< a rank does not want it
};

/// NCCL between all ranks of `comm`, for blocks on `device` of this one; on all of them or on none.
/// Collective. Throws as Agree does, and what ends the exchange.
NcclConnection ConnectNccl(Communicator* comm, int device, const WaitLimits& limits);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_NCCL_TRANSPORT_H_

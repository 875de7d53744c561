/// Blocks of a device over NCCL: from GPU to GPU, in the order of a stream.
///
/// A communicator of NCCL's for each exchange, made when all its ranks have agreed
/// (nccl_means.h). It does not block: whatever a call waits for on the CPU (peers that are not
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
#include "csrc/cuda/nccl_library.h"
#include "csrc/cuda/network_transport.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {

class NcclTransport final : public NetworkTransport {
 public:
  /// Collective over the ranks of `comm`, which have agreed on `id`, and which outlives this.
  ///
  /// Throws what ended the exchange; what NCCL says against it ends the exchange on all ranks.
  NcclTransport(const nccl::Library& library, const nccl::UniqueId& id, Communicator* comm,
                int device, const WaitLimits& limits);

  /// Takes leave of NCCL where all is well, else, or after two seconds, ends what is under way.
  ~NcclTransport() override;

  const char* Name() const override { return "NCCL"; }

  /// Throws what ended the exchange, too; InvalidArgument where a capture meets a peer for the
  /// first time.
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override;

  /// all[rank * bytes ...] = own of each rank. Blocks have a fixed capacity and say themselves how
  /// many entries they hold, so ranks with differing counts need no message about them.
  void AllGather(const void* own, void* all, std::int64_t bytes, cudaStream_t stream);

  /// stream() goes on behind what `other` has been given so far.
  void Follow(cudaStream_t other);

  /// What `other` is given from now on begins behind what stream() has been given so far.
  void LetFollow(cudaStream_t other);

  /// Throws what NCCL has met, too.
  void Check() override;

 private:
  static constexpr int kAll = -1;

  void RequireConnected(int peer, cudaStream_t stream);
  void Group(int peer, const std::string& what, const std::function<void()>& calls);
  void MustSucceed(nccl::Result result, const char* call, const std::string& what);
  bool IsReady(const std::string& what);
  std::string Awaited() const override;
  void GaveUp(const Error& error) override { End(error, true); }
  void End(const Error& error, bool tell);
  void Watch();

  const nccl::Library& library_;
  std::vector<bool> connected_;  // by peer, and to all at last
  std::unique_ptr<Event> mark_;  // between two streams

  std::mutex mutex_;  // guards the following, and every call of NCCL's
  nccl::Comm nccl_ = nullptr;
  std::optional<Error> ended_;
  bool closing_ = false;
  std::condition_variable wake_;
  std::thread watcher_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_NCCL_TRANSPORT_H_

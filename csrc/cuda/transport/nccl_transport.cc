#include "csrc/cuda/transport/nccl_transport.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "csrc/base/process.h"
#include "csrc/cuda/base/check.h"

namespace hvd_sparse::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kBetweenLooks{50};
constexpr milliseconds kFinalizeTimeout{2000};
constexpr const char* kWatching = "watching NCCL's communicator";

/// Blocks of threads of NCCL's kernels, which must fit on the device beside those of the
/// framework's communicators. NCCL's own limit is 32 or more.
constexpr int kMostCtas = 8;

}  // namespace

NcclTransport::NcclTransport(const nccl::Library& library, const nccl::UniqueId& id,
                             Communicator* comm, int device)
    : GpuTransport(comm, device, /*on_trial=*/true),
      library_(library),
      connected_(static_cast<std::size_t>(comm->Size())) {
  const OnDevice current(device);
  const std::string what = "making NCCL's communicator";
  try {
    {
      const std::lock_guard lock(mutex_);
      nccl::Config config;
      config.blocking = 0;
      config.most_ctas = kMostCtas;
      MustSucceed(library_.calls().CommInitRankConfig(&nccl_, Size(), id, Rank(), &config),
                  "ncclCommInitRankConfig", what);
    }
    WaitUntil([&] { return IsReady(what); }, what);
    const SignalsBlocked blocked;
    watcher_ = std::thread([this] { Watch(); });
  } catch (...) {
    End(CurrentError(Rank(), what), true);
    throw;
  }
  pthread_setname_np(watcher_.native_handle(), "hvd_nccl");
}

NcclTransport::~NcclTransport() {
  {
    const std::lock_guard lock(ending_);
    closing_ = true;
  }
  wake_.notify_all();
  watcher_.join();
  if (nccl_ == nullptr) return;

  const nccl::Calls& calls = library_.calls();
  const auto deadline = steady_clock::now() + kFinalizeTimeout;
  nccl::Result result = calls.CommFinalize(nccl_);
  while (result == nccl::kInProgress && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (calls.CommGetAsyncError(nccl_, &result) != nccl::kSuccess) break;
  }
  (void)(result == nccl::kSuccess ? calls.CommDestroy(nccl_) : calls.CommAbort(nccl_));
}

void NcclTransport::Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) {
  const std::string what = Described(out, in);
  for (const DeviceOut& message : out) RequireConnected(message.peer, stream);
  for (const DeviceIn& message : in) RequireConnected(message.peer, stream);
  Group(what, [&] {
    const nccl::Calls& calls = library_.calls();
    for (const auto& [peer, data, bytes] : out) {
      MustSucceed(
          calls.Send(data, static_cast<std::size_t>(bytes), nccl::kUint8, peer, nccl_, stream),
          "ncclSend", what);
    }
    for (const auto& [peer, data, bytes] : in) {
      MustSucceed(
          calls.Recv(data, static_cast<std::size_t>(bytes), nccl::kUint8, peer, nccl_, stream),
          "ncclRecv", what);
    }
  });
  for (const DeviceOut& message : out) connected_[static_cast<std::size_t>(message.peer)] = true;
  for (const DeviceIn& message : in) connected_[static_cast<std::size_t>(message.peer)] = true;
}

void NcclTransport::ThrowIfEnded() {
  const std::lock_guard lock(ending_);
  if (ended_) throw Error(*ended_);
}

/// Throws InvalidArgument in a capture with an unconnected peer: a first call allocates.
void NcclTransport::RequireConnected(int peer, cudaStream_t stream) {
  Require(connected_[static_cast<std::size_t>(peer)] || !IsCaptured(stream),
          "a stream is being captured, and rank ", Rank(), " is not connected to rank ", peer,
          " yet: make the same call once before the capture");
}

/// Makes `calls` as one group of NCCL, so that they begin together.
void NcclTransport::Group(const std::string& what, const std::function<void()>& calls) {
  const OnDevice current(device());
  try {
    {
      const std::lock_guard lock(mutex_);
      ThrowIfEnded();
      MustSucceed(library_.calls().GroupStart(), "ncclGroupStart", what);
      std::exception_ptr refused;
      try {
        calls();
      } catch (...) {
        refused = std::current_exception();
      }
      // Ends the group in any case: else all later calls of this thread would belong to it.
      const nccl::Result result = library_.calls().GroupEnd();
      if (refused) std::rethrow_exception(refused);
      MustSucceed(result, "ncclGroupEnd", what);
    }
    WaitUntil([&] { return IsReady(what); }, what);
  } catch (const Error& error) {
    End(error, true);
    throw;
  }
}

/// Throws if a call has failed. Any call may also be in progress still; then IsReady tells its
/// outcome.
void NcclTransport::MustSucceed(nccl::Result result, const char* call, const std::string& what) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  Throw(ErrorKind::kExchangeFailed, "rank ", Rank(), " failed in ", what, ": ",
        library_.Problem(result, call, nccl_));
}

/// Returns true if NCCL has done what the last call began. Messages of peers may still be in
/// flight.
bool NcclTransport::IsReady(const std::string& what) {
  const std::lock_guard lock(mutex_);
  return Poll(what);
}

/// IsReady, for a caller that holds mutex_.
bool NcclTransport::Poll(const std::string& what) {
  ThrowIfEnded();
  nccl::Result result = nccl::kSuccess;
  MustSucceed(library_.calls().CommGetAsyncError(nccl_, &result), "ncclCommGetAsyncError", what);
  if (result == nccl::kInProgress) return false;
  MustSucceed(result, "an earlier call of NCCL's", what);
  return true;
}

/// Names the other ranks, some of many: a stream waits for their messages.
std::string NcclTransport::AwaitedRanks() const {
  constexpr int kMost = 8;
  std::string others;
  int named = 0;
  for (int rank = 0; rank < Size() && named < kMost; ++rank) {
    if (rank == Rank()) continue;
    others += Concat(named == 0 ? "" : " or ", rank);
    ++named;
  }
  const int more = Size() - 1 - named;
  return more == 0 ? others : Concat(others, " or any of ", more, " more");
}

/// Aborts NCCL's communicator if the exchange has ended; throws the error that ended it.
void NcclTransport::CheckExchange() {
  try {
    comm().Check();
  } catch (const Error& error) {
    End(error, false);  // the other ranks know already
    throw;
  }
}

/// Aborts NCCL's communicator if the exchange has ended or NCCL has met an error; throws that
/// error.
void NcclTransport::Check() {
  CheckExchange();
  try {
    (void)IsReady(kWatching);
  } catch (const Error& error) {
    End(error, true);
    throw;
  }
}

/// Aborts NCCL's communicator, and keeps the first error. `tell`: true to fail the exchange on all
/// ranks.
void NcclTransport::End(const Error& error, bool tell) {
  {
    const std::lock_guard lock(ending_);
    if (ended_) return;
    ended_ = error;
  }
  try {
    if (tell) Tell(error);
  } catch (const std::bad_alloc&) {
    // Whoever waits on this rank still gets the error, and tells.
  }
  // Last, since aborting may wait for CUDA.
  const std::lock_guard lock(mutex_);
  if (nccl_ != nullptr) (void)library_.calls().CommAbort(nccl_);
  nccl_ = nullptr;
}

void NcclTransport::Watch() {
  try {
    StayOn(device());  // aborting frees memory there
  } catch (const Error& error) {
    return End(error, true);
  }
  std::unique_lock lock(ending_);
  while (!wake_.wait_for(lock, kBetweenLooks, [this] { return closing_ || ended_; })) {
    lock.unlock();
    try {
      CheckExchange();
      CheckOperation();
      const std::unique_lock calls(mutex_, std::try_to_lock);  // else a call waits, maybe for CUDA
      if (calls) (void)Poll(kWatching);
    } catch (const Error& error) {
      return End(error, true);  // kept in ended_ for the threads that wait
    }
    lock.lock();
  }
}

}  // namespace hvd_sparse::cuda

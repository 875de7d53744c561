/// A transport as an exchange uses it: with a name, a stream of its own, and waits of the CPU that
/// have limits and end with the exchange.
///
/// One may begin on trial: until EndTrial, an error is thrown by this rank's call alone, and does
/// not end the exchange, so that the ranks can agree to do without the transport; and waits end
/// after kTrialSeconds.

#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "csrc/base/error.h"
#include "csrc/comm/communicator.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/base/stream.h"

namespace hvd_sparse::cuda {

/// The longest wait of a trial, or half of the communicator's limit if that is shorter: a rank
/// whose trial has failed waits for those that still try. NCCL takes some time to connect many
/// ranks.
constexpr double kTrialSeconds = 30;

/// Work is enqueued from one thread at a time; Check may be called from any.
class GpuTransport : public DeviceTransport {
 public:
  GpuTransport(const GpuTransport&) = delete;
  GpuTransport& operator=(const GpuTransport&) = delete;

  int Rank() const override { return comm_.Rank(); }
  int Size() const override { return comm_.Size(); }

  /// The name of what carries the messages, as users read it.
  virtual const char* Name() const = 0;

  /// A stream of this transport's own, for messages that are timed.
  cudaStream_t stream() const { return stream_->get(); }

  /// Begins the operation that later messages belong to, as warnings and errors name it.
  void Begin(const std::string& operation);

  /// Waits on the CPU until a stream has done all its work, which ends the operation. Throws the
  /// error that ended the exchange, or Timeout after the communicator's limit; `what` names the
  /// operation that waits.
  void Await(cudaStream_t stream, const std::string& what);

  /// Throws the error that ended the exchange, if any.
  virtual void Check() { comm_.Check(); }

  /// From now on, errors end the exchange.
  void EndTrial() { on_trial_ = false; }

 protected:
  /// Connects the ranks of `comm`, which must outlive this object, for memory of `device`.
  GpuTransport(Communicator* comm, int device, bool on_trial = false);

  /// Names the ranks that a stream waits for, as they follow "rank" in warnings and errors.
  virtual std::string AwaitedRanks() const = 0;

  /// Called when `error` has ended a wait, before the wait throws it: tells all ranks, since who
  /// catches the error may wait for the device first.
  virtual void OnWaitFailed(const Error& error) { Tell(error); }

  /// Ends the exchange on all ranks, unless the transport is on trial.
  void Tell(const Error& error);

  /// Throws Timeout if the operation has not gone on for a second longer than a wait may take. Then
  /// its thread hangs in a call of CUDA's: as long as CUDA loads a kernel of any library, which
  /// waits for the device, other threads' calls wait too. This makes none; callable from any
  /// thread.
  void CheckOperation() const;

  /// Returns what messages belong to, for warnings and errors. Throws InvalidArgument unless each
  /// goes to or comes from another rank, and has bytes.
  std::string Described(Span<const DeviceOut> out, Span<const DeviceIn> in) const;

  /// Polls `done` until it is. Throws like Await, also if a stream passed only because the exchange
  /// has ended.
  void WaitUntil(const std::function<bool()>& done, const std::string& what);

  Communicator& comm() const { return comm_; }
  int device() const { return device_; }

 private:
  WaitLimits CurrentLimits() const;

  Communicator& comm_;
  const int device_;
  const WaitLimits limits_;
  std::atomic<bool> on_trial_;
  mutable std::mutex mutex_;  // guards the following, for CheckOperation
  std::string operation_ = "messages";
  // SteadySeconds when the operation began or last went on; none: no operation is under way.
  std::optional<double> went_on_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> mark_;
};

}  // namespace hvd_sparse::cuda

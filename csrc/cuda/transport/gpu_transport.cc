#include "csrc/cuda/transport/gpu_transport.h"

#include <algorithm>
#include <set>

#include "csrc/base/process.h"

namespace hvd_sparse::cuda {

GpuTransport::GpuTransport(Communicator* comm, int device, bool on_trial)
    : comm_(*comm), device_(device), limits_(comm->Limits()), on_trial_(on_trial) {
  const OnDevice current(device_);
  stream_ = std::make_unique<Stream>();
  mark_ = std::make_unique<Event>();
}

std::string GpuTransport::Described(Span<const DeviceOut> out, Span<const DeviceIn> in) const {
  std::set<int> peers;
  const auto note = [&](int peer, std::int64_t bytes) {
    Require(peer >= 0 && peer < Size() && peer != Rank(), "peer must be a rank below ", Size(),
            " other than ", Rank(), ", got ", peer);
    Require(bytes > 0, "bytes must be positive, got ", bytes);
    peers.insert(peer);
  };
  for (const DeviceOut& message : out) note(message.peer, message.bytes);
  for (const DeviceIn& message : in) note(message.peer, message.bytes);
  if (peers.size() == 1) {
    return Concat(operation_, ", between ranks ", Rank(), " and ", *peers.begin());
  }
  return Concat(operation_, ", between rank ", Rank(), " and ", peers.size(), " others");
}

void GpuTransport::Begin(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  operation_ = operation;
  went_on_ = SteadySeconds();
}

void GpuTransport::Await(cudaStream_t stream, const std::string& what) {
  const OnDevice current(device_);
  mark_->Record(stream);
  WaitUntil([&] { return mark_->Passed(); }, what);
  const std::lock_guard lock(mutex_);
  went_on_.reset();
}

void GpuTransport::Tell(const Error& error) {
  if (!on_trial_) comm_.Fail(error.kind(), error.what());
}

WaitLimits GpuTransport::CurrentLimits() const {
  if (!on_trial_) return limits_;
  const double half = limits_.fail_seconds / 2;
  return {limits_.warn_seconds, half > 0 ? std::min(half, kTrialSeconds) : kTrialSeconds,
          "the limit of a trial"};
}

void GpuTransport::CheckOperation() const {
  const WaitLimits limits = CurrentLimits();
  const std::lock_guard lock(mutex_);
  if (!went_on_ || limits.fail_seconds == 0) return;
  if (SteadySeconds() < *went_on_ + limits.fail_seconds + 1) return;
  Throw(ErrorKind::kTimeout, "rank ", Rank(), " ", limits.TimeoutMessage("CUDA"), " in ",
        operation_, ": its calls wait for kernels on the device");
}

void GpuTransport::WaitUntil(const std::function<bool()>& done, const std::string& what) {
  Patience patience(CurrentLimits(), Rank(), what, [this] { return AwaitedRanks(); });
  const auto check = [&] {
    try {
      Check();
    } catch (const Error& error) {
      Throw(error.kind(), error.what(), "; rank ", Rank(), " was waiting in ", what);
    }
  };
  try {
    while (!done()) {
      patience.Pause();
      check();
    }
    check();  // a stream may have passed only because the exchange ended
    const std::lock_guard lock(mutex_);
    if (went_on_) went_on_ = SteadySeconds();
  } catch (const Error& error) {
    OnWaitFailed(error);
    throw;
  }
}

}  // namespace hvd_sparse::cuda

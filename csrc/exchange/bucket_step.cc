/// The step of a bucket that is enqueued on a device as a whole, see
/// csrc/collectives/device_step.h.

#include "csrc/collectives/collectives.h"
#include "csrc/exchange/bucket.h"

namespace hvd_sparse {

void Bucket::PrepareSteps(GpuCollectives* gpu_collectives) {
  if (device_step_ != nullptr) return;
  device_step_ = gpu_collectives->Step(spec_, static_cast<std::uint32_t>(id_));
}

void Bucket::EnqueueSelection(Launch launch, const Kernels& kernels, const Mark* ready) {
  Begin(std::move(launch));
  stats_.route = Route::kStep;
  own_verdict_ = {};  // only the device knows it
  selected_.Reset(0);
  selected_.Finish(0);
  kernels.MakeStreamFollow(device_step_->select_stream(), ready);
  is_enqueued_ = true;
  device_step_->Select(launch_);
}

std::shared_ptr<const Mark> Bucket::Enqueue(Communicator& comm, const Kernels& kernels) {
  CollectiveContext ctx = ContextOf(comm, kernels, spec_.wire);
  BlockHeader own = Identity();
  own.kept = static_cast<std::uint32_t>(
      GTopK::KeptBeforeTheLast(ctx.k, ctx.numel, spec_.collective_options));
  ctx.AgreeBeforehand(&own);
  stats_.bytes_sent = ctx.bytes_sent;
  stats_.bytes_received = ctx.bytes_received;
  device_step_->Exchange();
  return kernels.EndOf(device_step_->exchange_stream());
}

bool Bucket::StepArrived(double seconds) {
  if (!device_step_->Arrived(seconds)) return false;
  const DeviceStepReport& report = device_step_->report();
  own_verdict_ = report.own_verdict;
  overflows_ = 0;  // the device checks before it writes: the verdict tells
  reduced_.Reset(0);
  reduced_.Finish(0);
  reduced_.header().verdict = report.verdict;
  if (own_verdict_.IsBadGradient()) RequireKnown(own_verdict_.rank());

  stats_.selected = report.selected;
  stats_.reduced = report.reduced;
  stats_.bytes_sent += report.messages.bytes_sent;
  stats_.bytes_received += report.messages.bytes_received;
  stats_.rounds = {report.messages};
  stats_.select_begin = report.begin;
  stats_.select_end = report.select_end;
  stats_.exchange_begin = report.messages.begin;
  stats_.settle_begin = report.messages.end;
  stats_.exchange_end = report.end;
  stats_.select_seconds = stats_.select_end - stats_.select_begin;
  stats_.exchange_seconds = stats_.exchange_end - stats_.exchange_begin;
  return true;
}

void Bucket::ReleaseDevices() {
  device_reduce_.reset();
  device_step_.reset();
}

}  // namespace hvd_sparse

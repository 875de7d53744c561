#include "csrc/exchange/enqueued_step.h"

#include <utility>

#include "csrc/collectives/collectives.h"

namespace hvd_sparse {

EnqueuedStep::EnqueuedStep(StepRecord* record, GpuCollectives* gpu_collectives)
    : record_(*record),
      device_step_(gpu_collectives->Step(record->spec, static_cast<std::uint32_t>(record->id))) {}

void EnqueuedStep::Select(int /*rank*/, const Kernels& kernels, const Mark* ready) {
  record_.stats.route = Route::kStep;
  record_.own_verdict = {};  // only the device knows it
  kernels.MakeStreamFollow(device_step_->select_stream(), ready);
  device_step_->Select(record_.launch);
}

bool EnqueuedStep::Reduce(Communicator& comm, const Kernels& kernels,
                          GpuCollectives* /*gpu_collectives*/) {
  CollectiveContext ctx = record_.ContextOf(comm, kernels);
  BlockHeader own = record_.Identity();
  own.kept = static_cast<std::uint32_t>(
      KeptBeforeTheLast(ctx.k, ctx.numel, record_.spec.collective_options));
  ctx.AgreeBeforehand(&own);
  record_.stats.bytes_sent = ctx.bytes_sent;
  record_.stats.bytes_received = ctx.bytes_received;
  device_step_->Exchange();
  written_ = kernels.EndOf(device_step_->exchange_stream());
  return false;
}

std::shared_ptr<const Mark> EnqueuedStep::Written(const Kernels& /*kernels*/) {
  return std::exchange(written_, nullptr);
}

bool EnqueuedStep::Arrived(double seconds) {
  if (!device_step_->Arrived(seconds)) return false;
  const DeviceStepReport& report = device_step_->report();
  record_.own_verdict = report.own_verdict;
  record_.overflows = 0;  // the device checks before it writes: the verdict tells
  record_.verdict = report.verdict;
  if (report.own_verdict.IsBadGradient()) record_.RequireKnown(report.own_verdict.rank());

  BucketStats& stats = record_.stats;
  stats.selected = report.selected;
  stats.reduced = report.reduced;
  stats.bytes_sent += report.messages.bytes_sent;
  stats.bytes_received += report.messages.bytes_received;
  stats.rounds = {report.messages};
  stats.select_begin = report.begin;
  stats.select_end = report.select_end;
  stats.exchange_begin = report.messages.begin;
  stats.settle_begin = report.messages.end;
  stats.exchange_end = report.end;
  stats.SetDurations();
  return true;
}

void EnqueuedStep::PutBack(const Kernels& /*kernels*/) { device_step_->PutBack(); }

}  // namespace hvd_sparse

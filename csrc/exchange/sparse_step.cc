#include "csrc/exchange/sparse_step.h"

#include "csrc/wire/value_coding.h"

namespace hvd_sparse {

SparseStep::SparseStep(StepRecord* record, NodePlace place)
    : BucketStep(record),
      blocks_(record, {0, record->numel}, place),
      segments_(record->spec.segment_numels, record->spec.max_ks, {0, record->numel},
                *record->sparsifier, blocks_.spared()) {}

/// The residual is the bucket's fusion buffer too: adding is packing.
std::int64_t SparseStep::Take(const Kernels& kernels) {
  const Launch& launch = record_.launch;
  SparseBlock& selected = blocks_.selected();
  blocks_.Begin();
  selected.Reset(segments_.room());
  std::int64_t not_finite = feedback_.Begin(kernels);
  const auto gradients_of = [this](auto... arguments) { return feedback_.Of(arguments...); };
  not_finite += segments_.Select(*record_.sparsifier, gradients_of, launch.ks, launch.states,
                                 launch.residual, kernels, &selected);
  try {
    record_.collective.Trim(record_.stats.asked, launch.residual, kernels, &selected);
  } catch (...) {  // out of memory
    kernels.PutBack(selected, 0, selected.count(), launch.residual);
    throw;
  }
  record_.stats.selected = selected.count();
  not_finite += CountNotCarried(record_.spec.wire.values, {selected.values(), selected.count()});
  return not_finite;
}

void SparseStep::Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) {
  if (gpu_collectives != nullptr && device_reduce_ == nullptr) {
    device_reduce_ = gpu_collectives->Reduce(record_.spec.collective);
  }
  record_.stats.route = device_reduce_ == nullptr ? Route::kCalls : Route::kRounds;
  CollectiveContext ctx = record_.ContextOf(comm, kernels);
  ctx.capacity = segments_.capacity();
  blocks_.Reduce(&ctx, record_.launch.residual, device_reduce_.get());
  blocks_.Scatter({0, record_.numel}, record_.launch.residual, comm.Size(), kernels);
  blocks_.MaskSelected(kernels);
  record_.verdict = blocks_.reduced().header().verdict;
  record_.stats.reduced = blocks_.reduced().count();
}

void SparseStep::PutBack(const Kernels& kernels) {
  blocks_.PutBackVelocity(kernels);
  blocks_.PutBackSelected(kernels);
}

}  // namespace hvd_sparse

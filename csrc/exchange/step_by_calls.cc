#include "csrc/exchange/step_by_calls.h"

#include "csrc/base/process.h"

namespace hvd_sparse {

void StepByCalls::Select(int rank, const Kernels& kernels, const Mark* /*ready*/) {
  BucketStats& stats = record_.stats;
  stats.select_begin = SteadySeconds();
  const std::int64_t not_finite = Take(kernels);
  record_.own_verdict =
      not_finite > 0 ? Verdict::BadGradient(rank, feedback_.Fault(kernels)) : Verdict();
  stats.select_end = SteadySeconds();
  stats.SetDurations();
}

bool StepByCalls::Reduce(Communicator& comm, const Kernels& kernels,
                         GpuCollectives* gpu_collectives) {
  BucketStats& stats = record_.stats;
  stats.exchange_begin = SteadySeconds();
  Sum(comm, kernels, gpu_collectives);
  record_.RequireKnown(comm.Rank());
  stats.exchange_end = SteadySeconds();
  stats.SetDurations();
  return true;
}

}  // namespace hvd_sparse

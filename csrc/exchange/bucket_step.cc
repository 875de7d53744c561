#include "csrc/exchange/bucket_step.h"

#include "csrc/base/process.h"

namespace hvd_sparse {

void BucketStep::Select(int rank, const Kernels& kernels) {
  BucketStats& stats = record_.stats;
  stats.select_begin = SteadySeconds();
  const std::int64_t not_finite = Take(kernels);
  record_.own_verdict =
      not_finite > 0 ? Verdict::BadGradient(rank, feedback_.Fault(kernels)) : Verdict();
  stats.select_end = SteadySeconds();
  stats.SetDurations();
}

void BucketStep::Reduce(Communicator& comm, const Kernels& kernels,
                        GpuCollectives* gpu_collectives) {
  BucketStats& stats = record_.stats;
  stats.exchange_begin = SteadySeconds();
  Sum(comm, kernels, gpu_collectives);
  record_.RequireKnown(comm.Rank());
  stats.exchange_end = SteadySeconds();
  stats.SetDurations();
}

}  // namespace hvd_sparse

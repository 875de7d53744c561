/// The frame of all steps that run one call at a time: error feedback, times and verdicts.

#pragma once

#include <cstdint>
#include <memory>

#include "csrc/exchange/bucket_step.h"
#include "csrc/exchange/error_feedback.h"
#include "csrc/exchange/step_record.h"

namespace hvd_sparse {

class StepByCalls : public BucketStep {
 public:
  /// `record` outlives this object.
  explicit StepByCalls(StepRecord* record) : record_(*record), feedback_(*record) {}

  /// `ready` must have been followed.
  void Select(int rank, const Kernels& kernels, const Mark* ready) final;
  bool Reduce(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) final;

  std::shared_ptr<const Mark> Written(const Kernels& kernels) final { return kernels.EndOfOwn(); }

 protected:
  /// Allocates what the step needs, begins error feedback, and takes from the residual what this
  /// rank sends. Returns how many entries of the gradients were not finite.
  virtual std::int64_t Take(const Kernels& kernels) = 0;

  /// Sums over the ranks and writes the result; sets verdict, overflows and what was reduced.
  virtual void Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) = 0;

  StepRecord& record_;
  ErrorFeedback feedback_;
};

}  // namespace hvd_sparse

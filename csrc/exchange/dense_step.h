/// A step by calls that sums all entries (`shard_sum`), in place of selecting and exchanging
/// blocks.
///
///     Take      residual + gradients  ->  messages of a ShardSum; rounding errors remain
///     Sum       the sum over all ranks  ->  the gradients
///     PutBack   what was taken returns to the residual
///
/// It delays nothing, so it masks no velocity.

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/shard_sum.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/bucket_step.h"

namespace hvd_sparse {

class DenseStep : public BucketStep {
 public:
  DenseStep(StepRecord* record, NodePlace place) : DenseStep(record, place, {0, record->numel}) {}

  void PutBack(const Kernels& kernels) override;

 protected:
  /// Sums a range of the bucket between as many ranks as there are nodes.
  DenseStep(StepRecord* record, NodePlace place, Range summed);

  std::int64_t Take(const Kernels& kernels) override;
  void Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) override;

  /// Writes sums into the gradients. Errors of rounding to a narrow type are shared by the `owners`
  /// of each entry, in units of the sum; `residual` is that of the entries `owned` by this rank.
  void Write(Range range, Span<const float> sums, Range owned, Span<float> residual, int owners);

  /// Notes the outcome, once all is written.
  void Finish(Verdict verdict);

  ShardSum sum_;

 private:
  /// Calls part(gradient, range in the bucket) for the part of each gradient in a range.
  template <typename Part>
  void ForEachGradient(Range range, const Part& part) const;

  std::vector<std::int64_t> begins_;  // of each gradient, and past the last one
  std::vector<Feedback> pieces_;      // the feedback of each piece of the sum
};

}  // namespace hvd_sparse

/// The step of a bucket, in one of several ways, each a class and a file of its own:
///
///     SparseStep      selects, exchanges blocks, settles and scatters
///     NodeStep        like it, but of the sum of a node's residuals
///     DenseStep       sums all entries
///     DenseNodeStep   like it, but of the sum of a node's residuals
///
/// Bucket chooses one of them when it is made. Their frame is here: error feedback, times and
/// verdicts.
///
/// A step holds scratch memory, never state: residuals and thresholds belong to the framework.

#pragma once

#include <cstdint>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"
#include "csrc/exchange/error_feedback.h"
#include "csrc/exchange/step_record.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// Its inputs are those of the StepRecord that it was made with; verdicts and statistics go there.
class BucketStep {
 public:
  /// `record` outlives this object.
  explicit BucketStep(StepRecord* record) : record_(*record), feedback_(*record) {}
  virtual ~BucketStep() = default;

  /// Adds the gradients to the residual and takes from there what this rank sends. See
  /// Bucket::Select.
  void Select(int rank, const Kernels& kernels);

  /// Exchanges the selection, puts back entries that were not delivered, masks the velocity of
  /// those that were, and writes the result into the gradients. `gpu_collectives` is non-null on
  /// all ranks, if their route is not kCalls, or on none.
  ///
  /// Gradients on a device may be written a little later: see Kernels::EndOfOwn.
  void Reduce(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives);

  /// Puts back all entries that were taken: residual and velocity are then what they were after
  /// error feedback, bit for bit. Nothing was applied, so nothing is lost.
  virtual void PutBack(const Kernels& kernels) = 0;

  /// Commits the step: the residual is what this rank has yet to send, and the velocity of
  /// delivered entries is zero. Valid when the step has arrived. Does not fail: other ranks may
  /// have committed.
  virtual void Commit() {}

  /// Waits for the device and frees its memory.
  virtual void ReleaseDevices() {}

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

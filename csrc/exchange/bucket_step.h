/// The step of a bucket, in one of several ways, each a class and a file of its own:
///
///     SparseStep      selects, exchanges blocks, settles and scatters, one call at a time
///     NodeStep        like it, but of the sum of a node's residuals
///     DenseStep       sums all entries
///     DenseNodeStep   like it, but of the sum of a node's residuals
///     EnqueuedStep    enqueues the whole step on a device at once
///
/// Bucket chooses one of the first four when it is made, and EnqueuedStep for steps whose route is
/// kStep.
///
/// A step holds scratch memory, never state: residuals and thresholds belong to the framework.

#pragma once

#include <memory>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"
#include "csrc/exchange/step_record.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// Its inputs are those of the StepRecord that it was made with; verdicts and statistics go there.
class BucketStep {
 public:
  virtual ~BucketStep() = default;

  /// Adds the gradients to the residual and takes from there what this rank sends; or enqueues that
  /// on a device, to begin after `ready`. See Bucket::Select.
  virtual void Select(int rank, const Kernels& kernels, const Mark* ready) = 0;

  /// Exchanges the selection, puts back entries that were not delivered, masks the velocity of
  /// those that were, and writes the result into the gradients. `gpu_collectives` is non-null on
  /// all ranks, if their route is not kCalls, or on none.
  ///
  /// Returns true if the step has arrived, false if a device still runs it: then Arrived tells.
  virtual bool Reduce(Communicator& comm, const Kernels& kernels,
                      GpuCollectives* gpu_collectives) = 0;

  /// Returns a mark before which gradients on a device may still be written; null if there is none.
  /// Called after Reduce, even if that has failed.
  virtual std::shared_ptr<const Mark> Written(const Kernels& kernels) = 0;

  /// Waits at most `seconds` for the end of the step, after Reduce; returns true if it has ended.
  virtual bool Arrived(double /*seconds*/) { return true; }

  /// Puts back all entries that were taken: residual and velocity are then what they were after
  /// error feedback, bit for bit. Nothing was applied, so nothing is lost. A step that was enqueued
  /// on a device can be put back at any time.
  virtual void PutBack(const Kernels& kernels) = 0;

  /// Commits the step: the residual is what this rank has yet to send, and the velocity of
  /// delivered entries is zero. Valid when the step has arrived. Does not fail: other ranks may
  /// have committed.
  virtual void Commit() {}

  /// Waits for the device and frees its memory.
  virtual void ReleaseDevices() {}
};

}  // namespace hvd_sparse

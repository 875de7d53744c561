/// A bucket and its part in a step: accumulate, select, allreduce, settle, scatter.
///
/// Each way to do that is a BucketStep; the bucket chooses one by its collective.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "csrc/base/types.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/bucket_step.h"
#include "csrc/exchange/step_record.h"

namespace hvd_sparse {

class Bucket {
 public:
  /// Throws InvalidArgument if the numbers do not fit together. `place` matters only if the
  /// collective sums nodes first, or sums dense.
  Bucket(int id, BucketSpec spec, NodePlace place = {});

  int id() const { return record_.id; }
  const BucketSpec& spec() const { return record_.spec; }
  std::int64_t numel() const { return record_.numel; }
  const BucketStats& stats() const { return record_.stats; }

  /// Throws InvalidArgument, before anything is touched, if the launch does not fit the plan.
  void Validate(const Launch& launch) const { CheckLaunch(record_.spec, launch); }

  /// Adds the gradients to the residual and moves the selected entries from there to a block; the
  /// gradients may be overwritten afterwards. If it throws, either all gradients have been added
  /// and nothing is selected, or nothing has happened.
  void Select(Launch launch, int rank, const Kernels& kernels);

  /// Returns the step in progress, or the last one.
  BucketStep& step() { return *step_; }

  /// The verdict on the step, equal on all ranks. Valid when the step has arrived.
  Verdict verdict() const { return record_.verdict; }

  /// Returns why no rank applies the step, equal on all ranks; empty if nothing is wrong. Valid
  /// when verdict() is.
  std::string Problem() const;

  /// The number of results that are not finite in the number type of their gradient.
  std::int64_t overflows() const { return record_.overflows; }

  /// Returns the largest magnitude that residual and velocity may keep of the step, if that was
  /// refused because sums of these entries over `ranks` ranks are too large; else infinity. Equal
  /// on all ranks, and valid when verdict() is.
  float LargestKept(int ranks) const;

  /// Drops what exceeds `largest` from the residual and the velocity of a step that was put back.
  void DropAbove(float largest, const Kernels& kernels) const;

 private:
  StepRecord record_;
  const std::unique_ptr<BucketStep> step_;
};

}  // namespace hvd_sparse

/// Error feedback in a bucket's step: the gradients, cut where segments begin, are added to the
/// residual.
///
/// With momentum correction, gradients are added to a velocity of this rank, and the velocity to
/// the residual (Lin et al., ICLR 2018).

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/base/verdict.h"
#include "csrc/exchange/step_record.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class ErrorFeedback {
 public:
  /// Reads the launch from `record`, which outlives this object.
  explicit ErrorFeedback(const StepRecord& record);

  /// Begins a step. Updates the velocity, if there is one and the feedback does not. Returns how
  /// many entries were not finite; they count as zero. From then on the velocity must be added to
  /// the residual, so whatever allocates memory comes before; if this throws, nothing has happened.
  std::int64_t Begin(const Kernels& kernels);

  /// Begins a step that takes inflow() in place of Of. Updates the velocity, if there is one;
  /// returns the same.
  std::int64_t BeginInflow(const Kernels& kernels);

  /// Returns the feedback that is added to the residual of a part of a segment; valid until the
  /// next call. Allocates no memory.
  Span<const Feedback> Of(std::size_t segment, Range part, Span<float> residual);

  /// Adds everything to the residual. Returns how many entries of the gradients were not finite.
  std::int64_t Accumulate(const Kernels& kernels);

  /// The values that are added to the residual, a view for each gradient, and their factor.
  const std::vector<GradView>& inflow() const { return inflow_; }
  float scale() const { return scale_; }

  /// Returns why a gradient of this rank cannot be added to its residual; checked only for
  /// gradients in CPU memory.
  GradientFault Fault(const Kernels& kernels) const;

 private:
  /// The part of a gradient that lies in a segment.
  struct GradientSlice {
    std::size_t gradient;
    std::int64_t begin, size;
    std::int64_t place;  // in the bucket
  };

  static std::vector<std::vector<GradientSlice>> Cut(const BucketSpec& spec);

  const StepRecord& record_;
  const std::vector<std::vector<GradientSlice>> slices_;  // by segment
  std::vector<GradView> inflow_;                          // the gradients, or the velocity
  float scale_ = 1;
  bool updates_velocity_ = false;   // as part of the feedback
  std::vector<Feedback> feedback_;  // of one segment; reserved for the largest
};

}  // namespace hvd_sparse

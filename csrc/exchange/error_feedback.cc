#include "csrc/exchange/error_feedback.h"

#include <algorithm>

#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/cpu_kernels.h"

namespace hvd_sparse {

ErrorFeedback::ErrorFeedback(const StepRecord& record)
    : record_(record), slices_(Cut(record.spec)) {
  for (const std::vector<GradientSlice>& segment : slices_) feedback_.reserve(segment.size());
}

std::vector<std::vector<ErrorFeedback::GradientSlice>> ErrorFeedback::Cut(const BucketSpec& spec) {
  std::vector<std::vector<GradientSlice>> slices;
  std::size_t gradient = 0;
  std::int64_t begin = 0;  // of the rest of this gradient
  std::int64_t place = 0;
  for (std::int64_t left : spec.segment_numels) {
    std::vector<GradientSlice>& segment = slices.emplace_back();
    while (left > 0) {
      const std::int64_t size = std::min(left, spec.gradient_numels[gradient] - begin);
      if (size > 0) segment.push_back({gradient, begin, size, place});
      left -= size;
      begin += size;
      place += size;
      if (begin < spec.gradient_numels[gradient]) continue;
      ++gradient;
      begin = 0;
    }
  }
  return slices;
}

std::int64_t ErrorFeedback::Begin(const Kernels& kernels) {
  const Launch& launch = record_.launch;
  updates_velocity_ = launch.velocity.data != nullptr && kernels.UpdatesVelocities();
  if (!updates_velocity_) return BeginInflow(kernels);
  inflow_ = launch.gradients;
  scale_ = launch.scale;
  return 0;
}

std::int64_t ErrorFeedback::BeginInflow(const Kernels& kernels) {
  const Launch& launch = record_.launch;
  inflow_ = launch.gradients;
  scale_ = launch.scale;
  if (launch.velocity.data == nullptr) return 0;
  // velocity = momentum * velocity + scale * gradient
  std::int64_t not_finite = 0, offset = 0;
  for (GradView& inflow : inflow_) {
    const Span<float> velocity = launch.velocity.Sub(offset, inflow.numel);
    not_finite += kernels.Accumulate({inflow, launch.momentum, launch.scale, velocity});
    offset += inflow.numel;
    inflow = {velocity.data, velocity.size, DType::kFloat32};
  }
  scale_ = 1;
  return not_finite;
}

Span<const Feedback> ErrorFeedback::Of(std::size_t segment, Range part, Span<float> residual) {
  feedback_.clear();
  std::int64_t begin = 0;  // of the slice in the segment
  for (const GradientSlice& slice : slices_[segment]) {
    const Range common = Overlap({begin, begin + slice.size}, part);
    const std::int64_t skipped = common.begin - begin;
    begin += slice.size;
    if (common.size() == 0) continue;
    Feedback one{inflow_[slice.gradient].Sub(slice.begin + skipped, common.size()),
                 record_.launch.decays[slice.gradient], scale_,
                 residual.Sub(common.begin - part.begin, common.size())};
    if (updates_velocity_) {
      one.velocity = record_.launch.velocity.Sub(slice.place + skipped, common.size());
      one.momentum = record_.launch.momentum;
    }
    feedback_.push_back(one);
  }
  return feedback_;
}

std::int64_t ErrorFeedback::Accumulate(const Kernels& kernels) {
  const std::vector<std::int64_t>& numels = record_.spec.segment_numels;
  std::int64_t not_finite = 0, offset = 0;
  for (std::size_t s = 0; s < numels.size(); offset += numels[s++]) {
    const Span<float> residual = record_.launch.residual.Sub(offset, numels[s]);
    for (const Feedback& part : Of(s, {0, numels[s]}, residual))
      not_finite += kernels.Accumulate(part);
  }
  return not_finite;
}

GradientFault ErrorFeedback::Fault(const Kernels& kernels) const {
  if (&kernels != &CpuKernels()) return GradientFault::kUnchecked;
  const auto& gradients = record_.launch.gradients;
  const bool finite = std::all_of(gradients.begin(), gradients.end(), cpu::AllFinite);
  return finite ? GradientFault::kBeyondFloat32 : GradientFault::kHoldsNonFinite;
}

}  // namespace hvd_sparse

#include "csrc/exchange/step_sample.h"

#include <algorithm>

namespace hvd_sparse {
namespace {

/// Number of entries read at a time: on a device they take scratch memory, which each thread keeps.
constexpr std::int64_t kPart = std::int64_t{1} << 17;

}  // namespace

void StepSampler::Begin(std::int64_t step) {
  step_ = step;
  samples_.clear();
  launches_.clear();
}

void StepSampler::Starts(std::size_t bucket, const Launch& launch) {
  if (every_ <= 0 || step_ % every_ != 0) return;
  samples_.push_back({bucket, step_, AccumulatedOf(launch), {}, {}});
  launches_.push_back(launch);
}

const std::vector<StepSample>& StepSampler::Complete() {
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    StepSample& sample = samples_[i];
    const Launch& launch = launches_[i];
    Follow(launch);
    Read({{}, 1, 1, launch.residual}, &sample.left);
    std::int64_t offset = 0;
    for (const GradView& gradient : launch.gradients) {
      const Span<float> nothing = launch.residual.Sub(offset, gradient.numel);  // 0 times that
      Read({gradient, 0, 1 / launch.output_scale, nothing}, &sample.applied);
      offset += gradient.numel;
    }
  }
  return samples_;
}

/// Makes later reads wait for the work that the stream of a launch has been given so far.
void StepSampler::Follow(const Launch& launch) const {
  kernels_.Follow(kernels_.EndOf(launch.stream).get());
}

/// Appends the result that error feedback would have; the residual stays as it is.
void StepSampler::Read(const Feedback& feedback, std::vector<float>* to) const {
  const GradView& gradient = feedback.grad;
  const Span<float> residual = feedback.residual;
  to->reserve(to->size() + static_cast<std::size_t>(residual.size));
  for (std::int64_t begin = 0; begin < residual.size; begin += kPart) {
    const std::int64_t size = std::min(kPart, residual.size - begin);
    const GradView part = gradient.data == nullptr ? GradView{} : gradient.Sub(begin, size);
    kernels_.Sample({part, feedback.decay, feedback.scale, residual.Sub(begin, size)}, size, 0, to);
  }
}

std::vector<float> StepSampler::AccumulatedOf(const Launch& launch) const {
  Follow(launch);
  std::vector<float> accumulated;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < launch.gradients.size(); ++i) {
    const GradView& gradient = launch.gradients[i];
    const Span<float> residual = launch.residual.Sub(offset, gradient.numel);
    const float decay = launch.decays[i];
    if (launch.velocity.size == 0) {
      Read({gradient, decay, launch.scale, residual}, &accumulated);
    } else {
      std::vector<float> inflow;
      Read({gradient, launch.momentum, launch.scale, launch.velocity.Sub(offset, gradient.numel)},
           &inflow);
      Read({{}, 1, 1, residual}, &accumulated);
      CpuKernels().Accumulate({{inflow.data(), gradient.numel, DType::kFloat32},
                               decay,
                               1,
                               Span<float>(accumulated).Sub(offset, gradient.numel)});
    }
    offset += gradient.numel;
  }
  return accumulated;
}

}  // namespace hvd_sparse

#include "csrc/exchange/step_sample.h"

#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

std::vector<float> AccumulatedOf(const Launch& launch) {
  std::vector<float> accumulated(launch.residual.begin(), launch.residual.end());
  std::vector<float> velocity(launch.velocity.begin(), launch.velocity.end());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < launch.gradients.size(); ++i) {
    GradView inflow = launch.gradients[i];
    float scale = launch.scale;
    if (!velocity.empty()) {
      const Span<float> part = Span<float>(velocity).Sub(offset, inflow.numel);
      CpuKernels().Accumulate({inflow, launch.momentum, scale, part});
      inflow = {part.data, part.size, DType::kFloat32};
      scale = 1;
    }
    CpuKernels().Accumulate(
        {inflow, launch.decays[i], scale, Span<float>(accumulated).Sub(offset, inflow.numel)});
    offset += inflow.numel;
  }
  return accumulated;
}

void Complete(const Launch& launch, StepSample* sample) {
  sample->left.assign(launch.residual.begin(), launch.residual.end());
  sample->applied.assign(sample->left.size(), 0.0f);
  std::int64_t offset = 0;
  for (const GradView& gradient : launch.gradients) {
    CpuKernels().Accumulate({gradient, 0, 1 / launch.output_scale,
                             Span<float>(sample->applied).Sub(offset, gradient.numel)});
    offset += gradient.numel;
  }
}

}  // namespace hvd_sparse

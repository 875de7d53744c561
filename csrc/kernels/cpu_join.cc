#include "csrc/kernels/cpu_join.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Rest = std::vector<std::pair<Index, float>>;

void Join(Span<const float> residual, float decay, float scale, Index offset, double* gradient,
          Rest* rest) {
  for (std::int64_t i = 0; i < residual.size; ++i) {
    const float own = decay * residual[i];
    const double total = gradient[i] + static_cast<double>(own) / static_cast<double>(scale);
    if (std::isfinite(total)) {
      gradient[i] = total;
    } else if (own != 0) {
      rest->emplace_back(offset + static_cast<Index>(i), own);
    }
  }
}

template <typename T>
void Join(Span<const float> residual, float decay, float scale, Index offset, float largest,
          T* gradient, Rest* rest) {
  for (std::int64_t i = 0; i < residual.size; ++i) {
    float left = decay * residual[i];
    const float total = Widen(gradient[i]) + left / scale;
    if (std::isfinite(total)) {
      gradient[i] = Narrow<T>(std::clamp(total, -largest, largest));
      left = (total - Widen(gradient[i])) * scale;
    }
    if (left != 0) rest->emplace_back(offset + static_cast<Index>(i), left);
  }
}

}  // namespace

void JoinResidual(Span<const float> residual, float decay, float scale, Index offset,
                  GradView gradient, Rest* rest) {
  const float float16 = 65504.0f, bfloat16 = BitsFloat(0x7f7f0000u),
              float32 = BitsFloat(0x7f7fffffu);
  switch (gradient.dtype) {
    case DType::kFloat32:
      return Join(residual, decay, scale, offset, float32, static_cast<float*>(gradient.data),
                  rest);
    case DType::kFloat64:
      return Join(residual, decay, scale, offset, static_cast<double*>(gradient.data), rest);
    case DType::kFloat16:
      return Join(residual, decay, scale, offset, float16, static_cast<Float16*>(gradient.data),
                  rest);
    case DType::kBFloat16:
      return Join(residual, decay, scale, offset, bfloat16, static_cast<BFloat16*>(gradient.data),
                  rest);
  }
}

}  // namespace hvd_sparse::cpu

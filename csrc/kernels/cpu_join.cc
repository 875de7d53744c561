#include "csrc/kernels/cpu_join.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Entries = std::vector<std::pair<Index, float>>;

void Join(Span<const float> residual, float decay, float scale, Index offset, double* gradient,
          Entries* rest) {
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
void Join(Span<const float> residual, float decay, float scale, Index offset, T* gradient,
          Entries* rest) {
  for (std::int64_t i = 0; i < residual.size; ++i) {
    float left = decay * residual[i];
    const float total = Widen(gradient[i]) + left / scale;
    if (std::isfinite(total)) {
      gradient[i] = Narrow<T>(std::clamp(total, -Largest<T>(), Largest<T>()));
      left = (total - Widen(gradient[i])) * scale;
    }
    if (left != 0) rest->emplace_back(offset + static_cast<Index>(i), left);
  }
}

}  // namespace

void JoinResidual(Span<const float> residual, float decay, float scale, Index offset,
                  GradView gradient, Entries* rest) {
  switch (gradient.dtype) {
    case DType::kFloat32:
      return Join(residual, decay, scale, offset, static_cast<float*>(gradient.data), rest);
    case DType::kFloat64:
      return Join(residual, decay, scale, offset, static_cast<double*>(gradient.data), rest);
    case DType::kFloat16:
      return Join(residual, decay, scale, offset, static_cast<Float16*>(gradient.data), rest);
    case DType::kBFloat16:
      return Join(residual, decay, scale, offset, static_cast<BFloat16*>(gradient.data), rest);
  }
}

bool PutRest(const RestList& rest, Span<float> residual) {
  std::fill(residual.begin(), residual.end(), 0.0f);
  for (const auto& [index, value] : rest.entries) residual[index] = value;
  return !rest.entries.empty();
}

}  // namespace hvd_sparse::cpu

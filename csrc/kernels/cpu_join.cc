#include "csrc/kernels/cpu_join.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/cpu_feedback.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Entries = std::vector<std::pair<Index, float>>;

template <typename Unsent>
void JoinUnsent(const Unsent& unsent, float gain, float scale, Span<double> gradient,
                Entries* after) {
  for (std::int64_t i = 0; i < gradient.size; ++i) {
    const float own = unsent(i);
    const double total = static_cast<double>(gain) * gradient[i] +
                         static_cast<double>(own) / static_cast<double>(scale);
    if (std::isfinite(total)) {
      gradient[i] = total;
    } else if (own != 0) {
      after->emplace_back(static_cast<Index>(i), own);
    }
  }
}

template <typename Unsent, typename T>
void JoinUnsent(const Unsent& unsent, float gain, float scale, Span<T> gradient, Entries* after) {
  for (std::int64_t i = 0; i < gradient.size; ++i) {
    float left = unsent(i);
    const float total = gain * Widen(gradient[i]) + left / scale;
    if (std::isfinite(total)) {
      gradient[i] = Narrow<T>(std::clamp(total, -Largest<T>(), Largest<T>()));
      left = (total - Widen(gradient[i])) * scale;
    }
    if (left != 0) after->emplace_back(static_cast<Index>(i), left);
  }
}

/// gradient[i] = gain * gradient[i] + unsent(i) / scale; appends the parts that do not fit to
/// `after`.
template <typename Unsent>
void JoinUnsent(const Unsent& unsent, float gain, float scale, GradView gradient, Entries* after) {
  const auto join = [&](auto* data) {
    JoinUnsent(unsent, gain, scale, Span(data, gradient.numel), after);
  };
  switch (gradient.dtype) {
    case DType::kFloat32:
      return join(static_cast<float*>(gradient.data));
    case DType::kFloat64:
      return join(static_cast<double*>(gradient.data));
    case DType::kFloat16:
      return join(static_cast<Float16*>(gradient.data));
    case DType::kBFloat16:
      return join(static_cast<BFloat16*>(gradient.data));
  }
}

}  // namespace

void Join(const UnsentParts& parts, GradView gradient, ResidualEntries* after) {
  const auto of_residual = [&](std::int64_t i) { return parts.decay * parts.residual[i]; };
  const auto of_velocity = [&](std::int64_t i) { return parts.momentum * parts.velocity[i]; };
  const auto both = [&](std::int64_t i) { return of_residual(i) + of_velocity(i); };
  after->entries.clear();
  const auto join = [&](const auto& unsent) {
    JoinUnsent(unsent, parts.gain, parts.scale, gradient, &after->entries);
  };
  if (parts.velocity.size == 0) return join(of_residual);
  std::copy(parts.velocity.begin(), parts.velocity.end(), parts.next.begin());
  Accumulate({gradient, parts.momentum, parts.gain * parts.scale, parts.next});
  parts.residual.size == 0 ? join(of_velocity) : join(both);
}

bool SetResidual(const ResidualEntries& after, Span<float> residual) {
  std::fill(residual.begin(), residual.end(), 0.0f);
  for (const auto& [index, value] : after.entries) residual[index] = value;
  return !after.entries.empty();
}

}  // namespace hvd_sparse::cpu

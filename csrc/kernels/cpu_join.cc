#include <algorithm>
#include <cmath>

#include "csrc/kernels/cpu_kernels.h"
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
  WithNumbersOf(gradient, [&](auto* data) {
    JoinUnsent(unsent, gain, scale, Span(data, gradient.numel), after);
  });
}

}  // namespace

std::unique_ptr<ResidualAfterJoin> KernelsOfCpu::NewResidualAfterJoin() const {
  return std::make_unique<ResidualEntries>();
}

void KernelsOfCpu::Join(const UnsentParts& parts, GradView gradient, StreamHandle /*stream*/,
                        ResidualAfterJoin* after) const {
  const auto of_residual = [&](std::int64_t i) { return parts.decay * parts.residual[i]; };
  const auto of_velocity = [&](std::int64_t i) { return parts.momentum * parts.velocity[i]; };
  const auto both = [&](std::int64_t i) { return of_residual(i) + of_velocity(i); };
  Entries& entries = static_cast<ResidualEntries*>(after)->entries;
  entries.clear();
  const auto join = [&](const auto& unsent) {
    JoinUnsent(unsent, parts.gain, parts.scale, gradient, &entries);
  };
  if (parts.velocity.size == 0) return join(of_residual);
  std::copy(parts.velocity.begin(), parts.velocity.end(), parts.next.begin());
  Accumulate({gradient, parts.momentum, parts.gain * parts.scale, parts.next});
  parts.residual.size == 0 ? join(of_velocity) : join(both);
}

bool KernelsOfCpu::SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                               StreamHandle /*stream*/) const {
  const Entries& entries = static_cast<const ResidualEntries&>(after).entries;
  std::fill(residual.begin(), residual.end(), 0.0f);
  for (const auto& [index, value] : entries) residual[index] = value;
  return !entries.empty();
}

}  // namespace hvd_sparse::cpu

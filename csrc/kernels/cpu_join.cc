#include "csrc/kernels/cpu_join.h"

#include <algorithm>
#include <cmath>

#include "csrc/kernels/cpu_feedback.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse::cpu {
namespace {

using Entries = std::vector<std::pair<Index, float>>;

template <typename Owed>
void JoinOwed(const Owed& owed, float scale, Span<double> gradient, Entries* rest) {
  for (std::int64_t i = 0; i < gradient.size; ++i) {
    const float own = owed(i);
    const double total = gradient[i] + static_cast<double>(own) / static_cast<double>(scale);
    if (std::isfinite(total)) {
      gradient[i] = total;
    } else if (own != 0) {
      rest->emplace_back(static_cast<Index>(i), own);
    }
  }
}

template <typename Owed, typename T>
void JoinOwed(const Owed& owed, float scale, Span<T> gradient, Entries* rest) {
  for (std::int64_t i = 0; i < gradient.size; ++i) {
    float left = owed(i);
    const float total = Widen(gradient[i]) + left / scale;
    if (std::isfinite(total)) {
      gradient[i] = Narrow<T>(std::clamp(total, -Largest<T>(), Largest<T>()));
      left = (total - Widen(gradient[i])) * scale;
    }
    if (left != 0) rest->emplace_back(static_cast<Index>(i), left);
  }
}

/// Adds owed(i) / scale to every entry of a gradient; appends the parts that do not fit to `rest`.
template <typename Owed>
void JoinOwed(const Owed& owed, float scale, GradView gradient, Entries* rest) {
  const auto join = [&](auto* data) { JoinOwed(owed, scale, Span(data, gradient.numel), rest); };
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

void Join(const Along& along, GradView gradient, RestList* rest) {
  const auto unsent = [&](std::int64_t i) { return along.decay * along.residual[i]; };
  const auto moving = [&](std::int64_t i) { return along.momentum * along.velocity[i]; };
  const auto both = [&](std::int64_t i) { return unsent(i) + moving(i); };
  rest->entries.clear();
  const auto join = [&](const auto& owed) {
    JoinOwed(owed, along.scale, gradient, &rest->entries);
  };
  if (along.velocity.size == 0) return join(unsent);
  std::copy(along.velocity.begin(), along.velocity.end(), along.next.begin());
  Accumulate({gradient, along.momentum, along.scale, along.next});
  along.residual.size == 0 ? join(moving) : join(both);
}

bool PutRest(const RestList& rest, Span<float> residual) {
  std::fill(residual.begin(), residual.end(), 0.0f);
  for (const auto& [index, value] : rest.entries) residual[index] = value;
  return !rest.entries.empty();
}

}  // namespace hvd_sparse::cpu

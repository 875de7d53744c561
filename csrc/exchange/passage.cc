#include "csrc/exchange/passage.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/kernels/cpu_join.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

namespace {

bool Narrow(const GradView& gradient) {
  return gradient.dtype == DType::kFloat16 || gradient.dtype == DType::kBFloat16;
}

}  // namespace

void Passage::LetAllOwe(bool owes) {
  const std::lock_guard lock(mutex_);
  owes_.assign(owes_.size(), owes);
  owed_anywhere_ = true;
}

bool Passage::OwedAnywhere() const {
  const std::lock_guard lock(mutex_);
  return owed_anywhere_;
}

void Passage::Begin() {
  const std::lock_guard lock(mutex_);
  joined_.clear();
  narrow_ = false;
}

void Passage::Join(const Piece& piece, const std::vector<GradView>& gradients) {
  {
    const std::lock_guard lock(mutex_);
    const bool has_residual = piece.residual.size > 0;
    narrow_ = narrow_ || (has_residual && std::any_of(gradients.begin(), gradients.end(), Narrow));
    if (piece.velocity.size == 0 && !(has_residual && owes_[piece.number])) return;
  }
  if (!device_.IsCpu()) {
    Throw(ErrorKind::kUnavailable, "piece ", piece.number, " lies on ", device_.Name(),
          ", and residuals and velocities join what travels dense on the CPU alone");
  }
  Joined joined{piece, {}, {piece.velocity.begin(), piece.velocity.end()}};
  std::vector<float> along(piece.residual.begin(), piece.residual.end());
  along.resize(static_cast<std::size_t>(std::max(piece.residual.size, piece.velocity.size)));
  for (float& value : along) value *= piece.decay;
  for (std::int64_t i = 0; i < piece.velocity.size; ++i) {
    along[static_cast<std::size_t>(i)] += piece.momentum * piece.velocity[i];
  }
  Span<float> next = joined.velocity;
  Index offset = 0;
  for (const GradView& gradient : gradients) {
    if (next.size > 0) {
      CpuKernels().Accumulate(
          {gradient, piece.momentum, piece.scale, next.Sub(offset, gradient.numel)});
    }
    cpu::JoinResidual(Span<float>(along).Sub(offset, gradient.numel), 1, piece.scale, offset,
                      gradient, &joined.rest);
    offset += static_cast<Index>(gradient.numel);
  }
  const std::lock_guard lock(mutex_);
  joined_.push_back(std::move(joined));
}

void Passage::Settle() {
  const std::lock_guard lock(mutex_);
  for (Joined& one : joined_) {
    const Span<float> residual = one.piece.residual;
    std::copy(one.velocity.begin(), one.velocity.end(), one.piece.velocity.begin());
    std::fill(residual.begin(), residual.end(), 0.0f);
    if (residual.size == 0) continue;
    for (const auto& [index, value] : one.rest) residual[index] = value;
    owes_[one.piece.number] = !one.rest.empty();
  }
  joined_.clear();
  owed_anywhere_ = owed_anywhere_ && narrow_;
}

void Passage::Refuse() {
  const std::lock_guard lock(mutex_);
  for (Joined& one : joined_) {
    if (one.piece.decay == 1) continue;
    for (float& value : one.piece.residual) value *= one.piece.decay;
  }
  joined_.clear();
}

}  // namespace hvd_sparse

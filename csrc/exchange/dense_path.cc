#include "csrc/exchange/dense_path.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/exchange/too_large.h"

namespace hvd_sparse {

namespace {

/// Returns the residual and velocity of an op's gradient, which lies at `offset` in it.
UnsentParts PartOf(const DenseInFlight& op, std::size_t gradient, std::int64_t offset,
                   std::int64_t numel) {
  UnsentParts parts;
  if (op.residual.size > 0) parts.residual = op.residual.Sub(offset, numel);
  if (op.velocity.size > 0) {
    parts.velocity = op.velocity.Sub(offset, numel);
    parts.next = op.next.Sub(offset, numel);
  }
  parts.decay = op.decays[gradient];
  parts.momentum = op.momentum;
  parts.gain = op.gain;
  parts.scale = op.scale;
  return parts;
}

}  // namespace

void DensePath::Restore(bool pending) {
  const std::lock_guard lock(mutex_);
  pending_.assign(pending_.size(), pending);
  has_rounding_.assign(has_rounding_.size(), !pending);
  any_pending_ = pending && !pending_.empty();
  for (auto& after : residuals_after_) after.clear();
}

bool DensePath::AnyPending() const {
  const std::lock_guard lock(mutex_);
  return any_pending_;
}

void DensePath::Begin(StreamHandle stream, bool of_all) {
  const std::lock_guard lock(mutex_);
  stream_ = stream;
  of_all_ = of_all;
  joined_.clear();
  refused_ = op_refused_ = false;
}

void DensePath::Join(const DenseInFlight& op, const std::vector<GradView>& gradients) {
  StreamHandle stream = 0;
  bool joins = false, has_rounding = false;
  {
    const std::lock_guard lock(mutex_);
    joins = op.velocity.size > 0 || (op.residual.size > 0 && pending_[op.number]);
    has_rounding = has_rounding_[op.number];
    stream = stream_;
  }
  Joined joined{op, {}, INFINITY};
  const float scale = 1 / (op.scale * op.loss_scale);
  for (const GradView& gradient : gradients) {
    joined.numels.push_back(gradient.numel);
    joined.largest = std::min(joined.largest, LargestSummand(gradient.dtype, scale, ranks_));
  }
  if (!joins) {
    if (has_rounding) Decay(joined, stream);
    return;
  }
  auto& after = residuals_after_[op.number];
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const GradView& gradient = gradients[i];
    if (i == after.size()) after.push_back(kernels_.NewResidualAfterJoin());
    kernels_.Join(PartOf(op, i, offset, gradient.numel), gradient, stream, after[i].get());
    offset += gradient.numel;
  }
  const std::lock_guard lock(mutex_);
  joined_.push_back(std::move(joined));
}

void DensePath::Decay(const Joined& one, StreamHandle stream) const {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < one.numels.size() && one.op.residual.size > 0; ++i) {
    const float decay = one.op.decays[i];
    if (decay != 1) kernels_.Decay(one.op.residual.Sub(offset, one.numels[i]), decay, stream);
    offset += one.numels[i];
  }
}

/// Leaves residual and velocity of an op whose sum is not applied.
void DensePath::Keep(const Joined& one, bool sum_is_finite) const {
  Decay(one, stream_);
  if (sum_is_finite) return;
  kernels_.Follow(kernels_.EndOf(stream_).get());
  DropAbove(one.largest, one.op.residual, kernels_);
}

void DensePath::Refuse(bool sums_are_finite) {
  const std::lock_guard lock(mutex_);
  for (const Joined& one : joined_) Keep(one, sums_are_finite);
  joined_.clear();
  refused_ = true;
}

void DensePath::SettleOp(std::size_t op, bool refused) {
  const std::lock_guard lock(mutex_);
  op_refused_ = op_refused_ || refused;
  const auto found = std::find_if(joined_.begin(), joined_.end(),
                                  [op](const Joined& one) { return one.op.number == op; });
  if (found == joined_.end()) return;
  refused ? Keep(*found, /*sum_is_finite=*/false) : Set(*found);
  joined_.erase(found);
}

bool DensePath::Settle() {
  const std::lock_guard lock(mutex_);
  if (refused_) return false;
  for (const Joined& one : joined_) Set(one);
  joined_.clear();
  any_pending_ = any_pending_ && (op_refused_ || !of_all_);
  return true;
}

/// Sets residual and velocity of an op whose sum is applied.
void DensePath::Set(const Joined& one) {
  const Span<float> residual = one.op.residual;
  if (one.op.velocity.size > 0) kernels_.Copy(one.op.next, one.op.velocity, stream_);
  if (residual.size == 0) return;
  bool has_rounding = false;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < one.numels.size(); ++i) {
    const Span<float> part = residual.Sub(offset, one.numels[i]);
    has_rounding =
        kernels_.SetResidual(*residuals_after_[one.op.number][i], part, stream_) || has_rounding;
    offset += one.numels[i];
  }
  pending_[one.op.number] = false;
  has_rounding_[one.op.number] = has_rounding;
}

}  // namespace hvd_sparse

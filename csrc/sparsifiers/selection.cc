#include "csrc/sparsifiers/selection.h"

namespace hvd_sparse {

Selection::Selection(Span<const Feedback> feedback, Span<float> residual, Index offset,
                     std::int64_t filled, std::int64_t room, const Kernels& kernels,
                     SparseBlock* out)
    : feedback_(feedback),
      residual_(residual),
      offset_(offset),
      filled_(filled),
      room_(room),
      kernels_(kernels),
      out_(out) {}

Span<const float> Selection::Sample(std::int64_t count, std::uint64_t seed) const {
  thread_local std::vector<float> sample;
  sample.clear();
  if (HasAccumulated()) {
    kernels_.Sample({{}, 1, 1, residual_}, count, seed, &sample);
    return sample;
  }
  for (const Feedback& part : feedback_) {
    const double share = static_cast<double>(part.residual.size) / static_cast<double>(size());
    const auto wanted = static_cast<std::int64_t>(share * static_cast<double>(count)) + 1;
    kernels_.Sample(part, wanted, seed, &sample);
  }
  return sample;
}

std::int64_t Selection::TakeAbove(float threshold) {
  Candidates& candidates = Own();
  std::int64_t above = 0;
  const auto take = [&](const Feedback& part) {
    const Tally tally = candidates.Take(part, threshold);
    above += tally.above;
    not_finite_ += tally.not_finite;
  };
  if (HasAccumulated()) {
    take({{}, 1, 1, residual_});
    return above;
  }
  for (const Feedback& part : feedback_) {
    take(part);
    ++joined_;
  }
  return above;
}

void Selection::TakeTopK(std::int64_t k) {
  const TopKCut cut = kernels_.FindTopK(Dense(), k);
  Own().TakeCut(residual_, cut);
}

void Selection::TakeAt(Span<const Index> positions) {
  Dense();
  Own().TakeAt(residual_, positions);
}

Candidates& Selection::Own() {
  if (candidates_ == nullptr) {
    const Span<float> bucket(residual_.data - offset_, offset_ + size());
    candidates_ = kernels_.NewCandidates(bucket, filled_, room_, out_);
  }
  return *candidates_;
}

Span<const float> Selection::Dense() {
  while (!HasAccumulated()) {
    not_finite_ += kernels_.Accumulate(feedback_[joined_]);
    ++joined_;
  }
  return residual_;
}

}  // namespace hvd_sparse

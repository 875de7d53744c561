#include "csrc/sparsifiers/selection.h"

#include <algorithm>
#include <cmath>

namespace hvd_sparse {

Selection::Selection(Span<const Feedback> feedback, Span<float> residual, Index offset,
                     std::int64_t filled, std::int64_t room, const Kernels& kernels,
                     SparseBlock* out)
    : feedback_(feedback),
      residual_(residual),
      offset_(offset),
      begin_(filled),
      room_(room),
      kernels_(kernels),
      out_(out),
      end_(filled) {}

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
  if (candidates_ == nullptr) candidates_ = kernels_.NewCandidates(room_, Bucket());
  std::int64_t above = 0;
  const auto note = [&](const Tally& tally) {
    above += tally.above;
    end_ += tally.taken;
    not_finite_ += tally.not_finite;
  };
  if (HasAccumulated()) {
    note(Take({{}, 1, 1, residual_}, threshold, offset_));
    return above;
  }
  Index offset = offset_;
  for (const Feedback& part : feedback_) {
    note(Take(part, threshold, offset));
    ++joined_;
    offset += static_cast<Index>(part.residual.size);
  }
  return above;
}

Tally Selection::Take(const Feedback& part, float threshold, Index offset) {
  if (candidates_ != nullptr) return candidates_->Take(part, threshold, offset);
  const std::int64_t limit = begin_ + room_;
  return part.grad.data == nullptr
             ? kernels_.TakeAbove(part.residual, threshold, offset, end_, limit, out_)
             : kernels_.AccumulateAndTake(part, threshold, offset, end_, limit, out_);
}

void Selection::TakeTopK(std::int64_t k) {
  const TopKCut cut = kernels_.FindTopK(Dense(), k);
  end_ += kernels_.TakeCut(residual_, cut, offset_, end_, out_);
}

void Selection::TakeAt(Span<const Index> positions) {
  Dense();
  kernels_.TakeAt(residual_, positions, offset_, end_, out_);
  end_ += positions.size;
}

float Selection::Smallest() {
  if (IsOnDevice()) return candidates_->Smallest();
  float smallest = INFINITY;
  for (const float value : values()) smallest = std::min(smallest, std::fabs(value));
  return smallest;
}

std::optional<std::array<SignSum, 2>> Selection::LargestOfSigns(std::int64_t k) {
  if (!IsOnDevice()) return std::nullopt;
  return candidates_->LargestOfSigns(k);
}

void Selection::KeepTopK(std::int64_t k) {
  if (IsOnDevice()) {
    candidates_->KeepTopK(k);
    NoteCandidates();
    return;
  }
  end_ = kernels_.KeepTopK(k, begin_, end_, out_, Bucket());
}

void Selection::Keep(const SignGroup& group) {
  if (IsOnDevice()) {
    candidates_->Keep(group);
    NoteCandidates();
    return;
  }
  auto keeps = group.Keeps();
  std::int64_t kept = begin_;
  for (std::int64_t i = begin_; i < end_; ++i) {
    if (!keeps(out_->values()[i])) continue;
    std::swap(out_->indices()[kept], out_->indices()[i]);
    std::swap(out_->values()[kept++], out_->values()[i]);
  }
  if (kept < end_) kernels_.PutBack(*out_, kept, end_, Bucket());
  end_ = kept;
}

void Selection::PutBack() {
  if (IsOnDevice()) {
    candidates_->PutBack();
    NoteCandidates();
    return;
  }
  if (begin_ < end_) kernels_.PutBack(*out_, begin_, end_, Bucket());
  end_ = begin_;
}

void Selection::Finish() {
  if (!IsOnDevice() || is_fetched_) return;
  candidates_->Fetch(begin_, out_);
  is_fetched_ = true;
}

void Selection::NoteCandidates() {
  end_ = begin_ + candidates_->count();
  is_fetched_ = false;
}

Span<const float> Selection::Dense() {
  while (!HasAccumulated()) {
    not_finite_ += kernels_.Accumulate(feedback_[joined_]);
    ++joined_;
  }
  return residual_;
}

}  // namespace hvd_sparse

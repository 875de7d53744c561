#include "csrc/sparsifiers/selection.h"

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
  std::int64_t above = 0;
  const auto note = [&](const Tally& tally) {
    above += tally.above;
    end_ += tally.taken;
    not_finite_ += tally.not_finite;
  };
  if (HasAccumulated()) {
    note(kernels_.TakeAbove(residual_, threshold, offset_, end_, begin_ + room_, out_));
    return above;
  }
  Index offset = offset_;
  for (const Feedback& part : feedback_) {
    note(kernels_.AccumulateAndTake(part, threshold, offset, end_, begin_ + room_, out_));
    ++joined_;
    offset += static_cast<Index>(part.residual.size);
  }
  return above;
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

void Selection::KeepTopK(std::int64_t k) {
  // Blocks hold positions in the bucket.
  const Span<float> bucket(residual_.data - offset_, residual_.size + offset_);
  end_ = kernels_.KeepTopK(k, begin_, end_, out_, bucket);
}

void Selection::PutBackFrom(std::int64_t place) {
  if (place == end_) return;
  const Span<float> bucket(residual_.data - offset_, residual_.size + offset_);
  kernels_.PutBack(*out_, place, end_, bucket);
  end_ = place;
}

Span<const float> Selection::Dense() {
  while (!HasAccumulated()) {
    not_finite_ += kernels_.Accumulate(feedback_[joined_]);
    ++joined_;
  }
  return residual_;
}

}  // namespace hvd_sparse

#include "csrc/kernels/cpu_candidates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/kernels/cpu_blocks.h"
#include "csrc/kernels/cpu_dense.h"

namespace hvd_sparse::cpu {

Tally CpuCandidates::Take(const Feedback& feedback, float threshold) {
  const Index offset = OffsetIn(bucket_, feedback.residual);
  const Tally tally = feedback.grad.data == nullptr
                          ? TakeAbove(feedback.residual, threshold, offset, Free())
                          : AccumulateAndTake(feedback, threshold, offset, Free());
  count_ += tally.taken;
  return tally;
}

void CpuCandidates::TakeCut(Span<float> residual, TopKCut cut) {
  count_ += cpu::TakeCut(residual, cut, OffsetIn(bucket_, residual), Free());
}

void CpuCandidates::TakeAt(Span<float> residual, Span<const Index> positions) {
  count_ += cpu::TakeAt(residual, positions, OffsetIn(bucket_, residual), Free());
}

void CpuCandidates::KeepTopK(std::int64_t k) {
  count_ = cpu::KeepTopK(k, begin_, end(), out_, bucket_) - begin_;
}

void CpuCandidates::Keep(const SignGroup& group) {
  auto keeps = group.Keeps();
  std::int64_t kept = begin_;
  for (std::int64_t i = begin_; i < end(); ++i) {
    if (!keeps(out_->values()[i])) continue;
    std::swap(out_->indices()[kept], out_->indices()[i]);
    std::swap(out_->values()[kept++], out_->values()[i]);
  }
  cpu::PutBack(*out_, kept, end(), bucket_);
  count_ = kept - begin_;
}

void CpuCandidates::PutBack() {
  cpu::PutBack(*out_, begin_, end(), bucket_);
  count_ = 0;
}

float CpuCandidates::Smallest() {
  float smallest = INFINITY;
  for (const float value : values()) smallest = std::min(smallest, std::fabs(value));
  return smallest;
}

SignSums CpuCandidates::LargestOfSigns(std::int64_t k) {
  return hvd_sparse::LargestOfSigns(values(), k);
}

}  // namespace hvd_sparse::cpu

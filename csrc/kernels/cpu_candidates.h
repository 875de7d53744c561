/// A segment's candidates on the CPU, which lie in their block; contract in candidates.h.

#ifndef HVD_SPARSE_KERNELS_CPU_CANDIDATES_H_
#define HVD_SPARSE_KERNELS_CPU_CANDIDATES_H_

#include <cstdint>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/cpu_feedback.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

class CpuCandidates : public Candidates {
 public:
  /// See Kernels::NewCandidates.
  CpuCandidates(Span<float> bucket, std::int64_t filled, std::int64_t room, SparseBlock* out)
      : bucket_(bucket), begin_(filled), room_(room), out_(out) {}

  Tally Take(const Feedback& feedback, float threshold) override;
  void TakeCut(Span<float> residual, TopKCut cut) override;
  void TakeAt(Span<float> residual, Span<const Index> positions) override;
  void KeepTopK(std::int64_t k) override;
  void Keep(const SignGroup& group) override;
  void PutBack() override;
  std::int64_t count() const override { return count_; }
  float Smallest() override;
  SignSums LargestOfSigns(std::int64_t k) override;
  void Fetch() override {}

 private:
  std::int64_t end() const { return begin_ + count_; }
  Span<const float> values() const { return {out_->values() + begin_, count_}; }

  /// Returns the places that are still free.
  Room Free() const { return {out_->indices() + end(), out_->values() + end(), room_ - count_}; }

  const Span<float> bucket_;
  const std::int64_t begin_, room_;
  SparseBlock* const out_;
  std::int64_t count_ = 0;
};

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_CANDIDATES_H_

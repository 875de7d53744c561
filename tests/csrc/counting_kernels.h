/// Kernels that count how many entries of a segment they read, and note the thresholds tried.

#ifndef HVD_SPARSE_TESTS_CSRC_COUNTING_KERNELS_H_
#define HVD_SPARSE_TESTS_CSRC_COUNTING_KERNELS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/kernels/cpu_kernels.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class CountingKernels final : public Kernels {
 public:
  /// Entries read, samples included; entries of blocks are few and not counted.
  std::int64_t entries() const { return entries_; }
  /// Thresholds above which entries were taken.
  const std::vector<float>& thresholds() const { return thresholds_; }

  std::int64_t Accumulate(const Feedback& feedback) const override {
    Look(feedback.residual);
    return cpu_.Accumulate(feedback);
  }
  TopKCut FindTopK(Span<const float> dense, std::int64_t k) const override {
    for (int pass = 0; pass < 3; ++pass) Look(dense);
    return cpu_.FindTopK(dense, k);
  }
  std::unique_ptr<Candidates> NewCandidates(Span<float> bucket, std::int64_t filled,
                                            std::int64_t room, SparseBlock* out) const override {
    return std::make_unique<CountingCandidates>(*this, bucket, filled, room, out);
  }
  Moments ComputeMoments(Span<const float> dense) const override {
    Look(dense);
    return cpu_.ComputeMoments(dense);
  }
  std::int64_t CountAbove(Span<const float> dense, float threshold) const override {
    Look(dense);
    return cpu_.CountAbove(dense, threshold);
  }
  void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
              std::vector<float>* sample) const override {
    const std::size_t before = sample->size();
    cpu_.Sample(feedback, count, seed, sample);
    entries_ += static_cast<std::int64_t>(sample->size() - before);
  }
  void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const override {
    cpu_.Merge(own, theirs, out);
  }
  std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end, SparseBlock* block,
                        Span<float> residual) const override {
    return cpu_.KeepTopK(k, begin, end, block, residual);
  }
  void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
               Span<float> residual) const override {
    cpu_.PutBack(block, begin, end, residual);
  }
  void Settle(const SparseBlock& selected, const SparseBlock& reduced,
              Span<float> residual) const override {
    cpu_.Settle(selected, reduced, residual);
  }
  void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                 std::vector<std::pair<Index, float>>* undo) const override {
    cpu_.AddErrors(errors, residual, undo);
  }
  void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const override {
    cpu_.Restore(undo, residual);
  }
  std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) const override {
    return cpu_.Scatter(reduced, scale, offset, grad, residual, undo, loss_scale);
  }
  std::unique_ptr<ResidualAfterJoin> NewResidualAfterJoin() const override {
    return cpu_.NewResidualAfterJoin();
  }
  void Join(const UnsentParts& parts, GradView gradient, StreamHandle stream,
            ResidualAfterJoin* after) const override {
    Look(parts.residual);
    cpu_.Join(parts, gradient, stream, after);
  }
  bool SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                   StreamHandle stream) const override {
    return cpu_.SetResidual(after, residual, stream);
  }
  void Copy(Span<const float> from, Span<float> to, StreamHandle stream) const override {
    Look(from);
    cpu_.Copy(from, to, stream);
  }
  void Decay(Span<float> residual, float decay, StreamHandle stream) const override {
    Look(residual);
    cpu_.Decay(residual, decay, stream);
  }

 private:
  class CountingCandidates final : public cpu::CpuCandidates {
   public:
    CountingCandidates(const CountingKernels& kernels, Span<float> bucket, std::int64_t filled,
                       std::int64_t room, SparseBlock* out)
        : CpuCandidates(bucket, filled, room, out), kernels_(kernels) {}

    Tally Take(const Feedback& feedback, float threshold) override {
      kernels_.Look(feedback.residual);
      kernels_.thresholds_.push_back(threshold);
      return CpuCandidates::Take(feedback, threshold);
    }
    void TakeCut(Span<float> residual, TopKCut cut) override {
      kernels_.Look(residual);
      CpuCandidates::TakeCut(residual, cut);
    }

   private:
    const CountingKernels& kernels_;
  };

  void Look(Span<const float> dense) const { entries_ += dense.size; }

  const Kernels& cpu_ = CpuKernels();
  mutable std::int64_t entries_ = 0;
  mutable std::vector<float> thresholds_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_COUNTING_KERNELS_H_

/// The kernels of the CPU. Each file cpu_*.cc defines methods of one kind; kernels.h and
/// candidates.h have their contracts. Below them is what other files of the CPU use.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

class KernelsOfCpu final : public Kernels {
 public:
  bool UpdatesVelocities() const override { return true; }
  std::int64_t Accumulate(const Feedback& feedback) const override;
  TopKCut FindTopK(Span<const float> dense, std::int64_t k) const override;
  std::unique_ptr<Candidates> NewCandidates(Span<float> bucket, std::int64_t filled,
                                            std::int64_t room, SparseBlock* out) const override;
  Moments ComputeMoments(Span<const float> dense) const override;
  std::int64_t CountAbove(Span<const float> dense, float threshold) const override;
  void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
              std::vector<float>* sample) const override;
  void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const override;
  std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end, SparseBlock* block,
                        Span<float> residual) const override;
  void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
               Span<float> residual) const override;
  void Settle(const SparseBlock& selected, const SparseBlock& reduced,
              Span<float> residual) const override;
  void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                 std::vector<std::pair<Index, float>>* undo) const override;
  void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const override;
  std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) const override;
  std::unique_ptr<ResidualAfterJoin> NewResidualAfterJoin() const override;
  void Join(const UnsentParts& parts, GradView gradient, StreamHandle stream,
            ResidualAfterJoin* after) const override;
  bool SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                   StreamHandle stream) const override;
  void Copy(Span<const float> from, Span<float> to, StreamHandle stream) const override;
  void Decay(Span<float> residual, float decay, StreamHandle stream) const override;
};

/// The destination of taken entries: free places of a block that is being written.
struct Room {
  Index* indices;
  float* values;
  std::int64_t size;
};

/// A segment's candidates, which lie in their block.
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

/// The non-zero entries of the residual after Join; all others become zero.
struct ResidualEntries final : ResidualAfterJoin {
  std::vector<std::pair<Index, float>> entries;
};

/// Computes residual = decay * residual + scale * grad for `size` entries, as specified by
/// Feedback; returns the number of results that were not finite.
std::int64_t AddGradient(DType dtype, const void* grad, std::int64_t size, float decay, float scale,
                         float* residual);

/// Returns visit(numbers), the numbers of a gradient as T*.
template <typename Visit>
auto WithNumbersOf(GradView gradient, Visit visit) {
  switch (gradient.dtype) {
    case DType::kFloat32:
      return visit(static_cast<float*>(gradient.data));
    case DType::kFloat64:
      return visit(static_cast<double*>(gradient.data));
    case DType::kFloat16:
      return visit(static_cast<Float16*>(gradient.data));
    case DType::kBFloat16:
      return visit(static_cast<BFloat16*>(gradient.data));
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(gradient.dtype));
}

/// Returns true if no entry is NaN or infinite in the gradient's own number type.
bool AllFinite(GradView gradient);

/// Returns the number of the first entry of a block at or behind `position`.
std::int64_t LowerBound(const SparseBlock& block, Index position);

/// Writes sums into a gradient: grad[i] = scale * sums[i]. Otherwise like Kernels::Scatter;
/// `offset` is the position of residual[0], which is empty or as long.
std::int64_t WriteDense(Span<const float> sums, float scale, GradView grad, Span<float> residual,
                        Index offset, std::vector<std::pair<Index, float>>* undo, float loss_scale);

}  // namespace hvd_sparse::cpu

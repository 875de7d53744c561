/// The kernels of the CPU: forwards each call of Kernels to the function that implements it.

#include <algorithm>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_blocks.h"
#include "csrc/kernels/cpu_candidates.h"
#include "csrc/kernels/cpu_dense.h"
#include "csrc/kernels/cpu_feedback.h"
#include "csrc/kernels/cpu_join.h"
#include "csrc/kernels/cpu_scatter.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {
namespace {

class CpuKernelsImpl final : public Kernels {
 public:
  bool UpdatesVelocities() const override { return true; }

  std::int64_t Accumulate(const Feedback& feedback) const override {
    return cpu::Accumulate(feedback);
  }

  TopKCut FindTopK(Span<const float> dense, std::int64_t k) const override {
    return cpu::FindTopK(dense, k);
  }

  std::unique_ptr<Candidates> NewCandidates(Span<float> bucket, std::int64_t filled,
                                            std::int64_t room, SparseBlock* out) const override {
    return std::make_unique<cpu::CpuCandidates>(bucket, filled, room, out);
  }

  Moments ComputeMoments(Span<const float> dense) const override {
    return cpu::ComputeMoments(dense);
  }

  std::int64_t CountAbove(Span<const float> dense, float threshold) const override {
    return cpu::CountAbove(dense, threshold);
  }

  void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
              std::vector<float>* sample) const override {
    cpu::Sample(feedback, count, seed, sample);
  }

  void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const override {
    cpu::Merge(own, theirs, out);
  }

  std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end, SparseBlock* block,
                        Span<float> residual) const override {
    return cpu::KeepTopK(k, begin, end, block, residual);
  }

  void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
               Span<float> residual) const override {
    cpu::PutBack(block, begin, end, residual);
  }

  void Settle(const SparseBlock& selected, const SparseBlock& reduced,
              Span<float> residual) const override {
    cpu::Settle(selected, reduced, residual);
  }

  void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                 std::vector<std::pair<Index, float>>* undo) const override {
    cpu::AddErrors(errors, residual, undo);
  }

  void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const override {
    cpu::Restore(undo, residual);
  }

  std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) const override {
    return cpu::Scatter(reduced, scale, offset, grad, residual, undo, loss_scale);
  }

  std::unique_ptr<ResidualAfterJoin> NewResidualAfterJoin() const override {
    return std::make_unique<cpu::ResidualEntries>();
  }

  void Join(const UnsentParts& parts, GradView gradient, StreamHandle /*stream*/,
            ResidualAfterJoin* after) const override {
    cpu::Join(parts, gradient, static_cast<cpu::ResidualEntries*>(after));
  }

  bool SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                   StreamHandle /*stream*/) const override {
    return cpu::SetResidual(static_cast<const cpu::ResidualEntries&>(after), residual);
  }

  void Copy(Span<const float> from, Span<float> to, StreamHandle /*stream*/) const override {
    std::copy(from.begin(), from.end(), to.begin());
  }

  void Decay(Span<float> residual, float decay, StreamHandle /*stream*/) const override {
    for (float& value : residual) value *= decay;
  }
};

}  // namespace

const Kernels& CpuKernels() {
  static const CpuKernelsImpl kernels;
  return kernels;
}

const char* CpuInstructionSet() {
#if HVD_SPARSE_HAS_CLONES
  if (__builtin_cpu_supports("avx512f")) return "avx512";
  if (__builtin_cpu_supports("avx2")) return "avx2";
#endif
  return "baseline";
}

}  // namespace hvd_sparse

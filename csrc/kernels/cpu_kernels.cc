/// The kernels of the CPU: which function does which part of the vocabulary.

#include <algorithm>

#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_blocks.h"
#include "csrc/kernels/cpu_dense.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {
namespace {

class CpuKernelsImpl final : public Kernels {
 public:
  std::int64_t Accumulate(GradView grad, float decay, float scale,
                          Span<float> residual) const override {
    return cpu::Accumulate(grad, decay, scale, residual);
  }

  Moments ComputeMoments(Span<const float> dense) const override {
    return cpu::ComputeMoments(dense);
  }

  std::int64_t CountAbove(Span<const float> dense, float threshold) const override {
    return cpu::CountAbove(dense.data, dense.size, threshold);
  }

  void Sample(Span<const float> dense, std::int64_t count,
              std::vector<float>* sample) const override {
    cpu::Sample(dense, count, sample);
  }

  std::int64_t SelectAbove(Span<const float> dense, float threshold, Index offset,
                           std::int64_t filled, std::int64_t limit,
                           SparseBlock* out) const override {
    return cpu::SelectAbove(dense.data, dense.size, threshold, offset,
                            cpu::RoomOf(out, filled, std::min(limit, out->capacity())));
  }

  TopKCut FindTopK(Span<const float> dense, std::int64_t k) const override {
    return cpu::FindTopK(dense, k);
  }

  std::int64_t SelectCut(Span<const float> dense, TopKCut cut, Index offset, std::int64_t filled,
                         SparseBlock* out) const override {
    return cpu::SelectCut(dense.data, dense.size, cut, offset,
                          cpu::RoomOf(out, filled, out->capacity()));
  }

  void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const override {
    cpu::Merge(own, theirs, out);
  }

  void KeepTopK(std::int64_t k, SparseBlock* block) const override { cpu::KeepTopK(k, block); }

  void Settle(const SparseBlock& selected, const SparseBlock& reduced,
              Span<float> residual) const override {
    cpu::Settle(selected, reduced, residual);
  }

  void PutBack(const SparseBlock& selected, Span<float> residual) const override {
    cpu::PutBack(selected, residual);
  }

  std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                       Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                       float loss_scale) const override {
    return cpu::Scatter(reduced, scale, offset, grad, residual, undo, loss_scale);
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

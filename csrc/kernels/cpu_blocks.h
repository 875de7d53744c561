/// Work on blocks, and between blocks and dense arrays, on the CPU; contracts in kernels.h.

#ifndef HVD_SPARSE_KERNELS_CPU_BLOCKS_H_
#define HVD_SPARSE_KERNELS_CPU_BLOCKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out);

void KeepTopK(std::int64_t k, SparseBlock* block);

void Settle(const SparseBlock& selected, const SparseBlock& reduced, Span<float> residual);

void PutBack(const SparseBlock& selected, Span<float> residual);

std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                     Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                     float loss_scale);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_BLOCKS_H_

/// Operations on blocks, and putting back of taken entries, on the CPU; contracts in kernels.h.

#ifndef HVD_SPARSE_KERNELS_CPU_BLOCKS_H_
#define HVD_SPARSE_KERNELS_CPU_BLOCKS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cpu {

void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out);

std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end, SparseBlock* block,
                      Span<float> residual);

void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end, Span<float> residual);

void Settle(const SparseBlock& selected, const SparseBlock& reduced, Span<float> residual);

void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
               std::vector<std::pair<Index, float>>* undo);

void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual);

/// Returns the number of the first entry of a block at or behind `position`.
std::int64_t LowerBound(const SparseBlock& block, Index position);

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_CPU_BLOCKS_H_

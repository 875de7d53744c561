/// Which entries go back to a residual: found on the CPU, where blocks lie.

#ifndef HVD_SPARSE_CUDA_ENTRY_LISTS_H_
#define HVD_SPARSE_CUDA_ENTRY_LISTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Entries on their way to a residual; no position occurs twice.
struct EntryList {
  std::vector<Index> positions;
  std::vector<float> values;

  std::int64_t count() const { return static_cast<std::int64_t>(positions.size()); }
  void Add(Index position, float value) {
    positions.push_back(position);
    values.push_back(value);
  }
};

/// The `selected` entries that `reduced` does not hold, or holds without the survived bit.
/// `reduced` comes from other ranks, and may be malformed.
EntryList Undelivered(const SparseBlock& selected, const SparseBlock& reduced);

/// The entries of `before` that are not among the entries [begin, end) of `kept`, which has some of
/// them, in the same order. Takes no memory: the others have been dropped.
EntryList Dropped(EntryList before, const SparseBlock& kept, std::int64_t begin, std::int64_t end);

/// What Kernels::Restore has to write: of several values of a position, the first.
EntryList FirstValues(Span<const std::pair<Index, float>> undo);

/// The positions inside [0, size) at which there are errors; ascending, without values.
EntryList PlacesOf(Span<const std::pair<Index, float>> errors, std::int64_t size);

/// Kernels::AddErrors to the places that PlacesOf found, whose values have been filled in.
void AddErrorsTo(EntryList* places, Span<const std::pair<Index, float>> errors,
                 std::vector<std::pair<Index, float>>* undo);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_ENTRY_LISTS_H_

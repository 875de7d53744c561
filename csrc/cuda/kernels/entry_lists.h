/// Lists of the entries that go back to a residual, made on the CPU, where blocks lie.

#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

/// Entries to be written to a residual; no position occurs twice.
struct EntryList {
  std::vector<Index> positions;
  std::vector<float> values;

  std::int64_t count() const { return static_cast<std::int64_t>(positions.size()); }
  void Add(Index position, float value) {
    positions.push_back(position);
    values.push_back(value);
  }
};

/// Returns the `selected` entries that `reduced` does not hold, or holds without the survived bit.
/// `reduced` comes from other ranks, and may be malformed.
EntryList Undelivered(const SparseBlock& selected, const SparseBlock& reduced);

/// Returns the entries of `before` that are not among the entries [begin, end) of `kept`, which are
/// a subset of them in the same order. Does not allocate, which could fail: the returned entries
/// exist nowhere else.
EntryList Dropped(EntryList before, const SparseBlock& kept, std::int64_t begin, std::int64_t end);

/// Returns the entries that Kernels::Restore has to write: of several values of a position, the
/// first.
EntryList FirstValues(Span<const std::pair<Index, float>> undo);

/// Returns the positions inside [0, size) at which there are errors, ascending; the caller fills in
/// the values.
EntryList PlacesOf(Span<const std::pair<Index, float>> errors, std::int64_t size);

/// Applies Kernels::AddErrors to `places`, which PlacesOf found and whose values have been filled
/// in.
void AddErrorsTo(EntryList* places, Span<const std::pair<Index, float>> errors,
                 std::vector<std::pair<Index, float>>* undo);

}  // namespace hvd_sparse::cuda

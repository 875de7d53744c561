#include "csrc/cuda/kernels/entry_lists.h"

#include <algorithm>

namespace hvd_sparse::cuda {

EntryList Undelivered(const SparseBlock& selected, const SparseBlock& reduced) {
  EntryList list;
  std::int64_t theirs = 0;
  for (std::int64_t i = 0; i < selected.count(); ++i) {
    const Index position = Position(selected.indices()[i]);
    while (theirs < reduced.count() && Position(reduced.indices()[theirs]) < position) ++theirs;
    const bool is_delivered = theirs < reduced.count() &&
                              Position(reduced.indices()[theirs]) == position &&
                              Survived(reduced.indices()[theirs]);
    if (!is_delivered) list.Add(position, selected.values()[i]);
  }
  return list;
}

EntryList Dropped(EntryList before, const SparseBlock& kept, std::int64_t begin, std::int64_t end) {
  std::int64_t next = begin;
  std::size_t dropped = 0;
  for (std::size_t i = 0; i < before.positions.size(); ++i) {
    if (next < end && kept.indices()[next] == before.positions[i]) {
      ++next;
    } else {
      before.positions[dropped] = before.positions[i];
      before.values[dropped++] = before.values[i];
    }
  }
  before.positions.resize(dropped);
  before.values.resize(dropped);
  return before;
}

EntryList FirstValues(Span<const std::pair<Index, float>> undo) {
  const auto by_position = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::vector<std::pair<Index, float>> entries(undo.begin(), undo.end());
  std::stable_sort(entries.begin(), entries.end(), by_position);
  EntryList list;
  for (const auto& [position, value] : entries) {
    if (list.positions.empty() || list.positions.back() != position) list.Add(position, value);
  }
  return list;
}

EntryList PlacesOf(Span<const std::pair<Index, float>> errors, std::int64_t size) {
  EntryList list;
  for (const auto& [position, error] : errors) {
    if (position >= 0 && position < size) list.positions.push_back(position);
  }
  std::sort(list.positions.begin(), list.positions.end());
  list.positions.erase(std::unique(list.positions.begin(), list.positions.end()),
                       list.positions.end());
  list.values.resize(list.positions.size());
  return list;
}

void AddErrorsTo(EntryList* places, Span<const std::pair<Index, float>> errors,
                 std::vector<std::pair<Index, float>>* undo) {
  const std::vector<Index>& positions = places->positions;
  for (const auto& [position, error] : errors) {
    const auto found = std::lower_bound(positions.begin(), positions.end(), position);
    if (found == positions.end() || *found != position) continue;
    float& value = places->values[static_cast<std::size_t>(found - positions.begin())];
    undo->emplace_back(position, value);
    value += error;
  }
}

}  // namespace hvd_sparse::cuda

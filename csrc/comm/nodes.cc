#include "csrc/comm/nodes.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <sstream>
#include <string>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

/// Returns the list as text, "0 0 1 1"; cut short after 64 ranks.
std::string Listed(const std::vector<int>& nodes) {
  constexpr std::size_t kMost = 64;
  std::ostringstream text;
  for (std::size_t rank = 0; rank < std::min(kMost, nodes.size()); ++rank) {
    text << (rank == 0 ? "" : " ") << nodes[rank];
  }
  if (nodes.size() > kMost) text << " ...";
  return text.str();
}

}  // namespace

Nodes Nodes::Of(int size, int local_size) {
  Require(local_size >= 1, "local_size must be at least 1, got ", local_size);
  std::vector<int> of_ranks;
  for (int rank = 0; rank < size; ++rank) of_ranks.push_back(rank / local_size);
  return Nodes(std::move(of_ranks));
}

std::optional<int> Nodes::LocalSize() const {
  if (of_ranks_.empty()) return 1;
  const auto ends = [&](int node) { return node != of_ranks_.front(); };
  const auto size = static_cast<std::size_t>(
      std::find_if(of_ranks_.begin(), of_ranks_.end(), ends) - of_ranks_.begin());
  if (of_ranks_.size() % size != 0) return std::nullopt;
  std::set<int> seen;
  for (std::size_t first = 0; first < of_ranks_.size(); first += size) {
    const int node = of_ranks_[first];
    if (!seen.insert(node).second) return std::nullopt;
    const auto begin = of_ranks_.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(size);
    if (std::count(begin, end, node) != end - begin) return std::nullopt;
  }
  return static_cast<int>(size);
}

NodePlace Nodes::PlaceOf(int rank, int size) const {
  const std::optional<int> local_size = LocalSize();
  Require(local_size.has_value(),
          "this collective needs as many ranks on every node, and the ranks of a node in a row; "
          "the ranks are on nodes ",
          Listed(of_ranks_));
  return {rank % *local_size, *local_size, rank / *local_size, size / *local_size};
}

}  // namespace hvd_sparse

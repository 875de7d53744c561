/// The nodes of an exchange's ranks.

#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace hvd_sparse {

/// A rank's place on its node, and the place of the node.
struct NodePlace {
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;

  /// The place of a rank that shares its node with none.
  static NodePlace Alone(int rank, int size) { return {0, 1, rank, size}; }
};

class Nodes {
 public:
  /// Puts every rank on a node of its own.
  Nodes() = default;

  /// Takes the node of every rank, in rank order; equal numbers stand for the same node.
  explicit Nodes(std::vector<int> of_ranks) : of_ranks_(std::move(of_ranks)) {}

  /// Returns nodes of `local_size` ranks each, with rank r on node r / local_size.
  static Nodes Of(int size, int local_size);

  /// Returns the number of ranks on each node, if it is the same on all and each node's ranks are
  /// consecutive.
  std::optional<int> LocalSize() const;

  /// Returns the place of a rank of `size`, if there is a LocalSize.
  ///
  /// Throws InvalidArgument otherwise, naming the node of every rank; all ranks throw alike.
  NodePlace PlaceOf(int rank, int size) const;

 private:
  std::vector<int> of_ranks_;  // empty: each rank has its own
};

}  // namespace hvd_sparse

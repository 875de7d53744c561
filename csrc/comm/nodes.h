/// Which ranks of an exchange share a node.

#ifndef HVD_SPARSE_COMM_NODES_H_
#define HVD_SPARSE_COMM_NODES_H_

#include <optional>
#include <utility>
#include <vector>

namespace hvd_sparse {

/// A rank's place on its node.
struct NodePlace {
  int local_rank = 0;
  int local_size = 1;
};

class Nodes {
 public:
  /// Every rank is on a node of its own.
  Nodes() = default;

  /// The node of every rank, in the order of the ranks; equal numbers stand for the same node.
  explicit Nodes(std::vector<int> of_ranks) : of_ranks_(std::move(of_ranks)) {}

  /// Nodes of `local_size` ranks each, rank r on node r / local_size.
  static Nodes Of(int size, int local_size);

  /// Ranks on each node, if all nodes hold as many, and one node's ranks follow each other.
  std::optional<int> LocalSize() const;

  /// Where a rank lies, if there is a LocalSize.
  ///
  /// Throws InvalidArgument otherwise, naming the node of every rank; on every rank alike.
  NodePlace PlaceOf(int rank) const;

 private:
  std::vector<int> of_ranks_;  // empty: each its own
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_NODES_H_

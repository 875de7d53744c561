/// The sum of the residuals of a node's ranks, of which each rank owns a shard.
///
///     Add      residuals of all ranks of the node  ->  the sum of the own shard, on its owner
///     Gather   the block of every shard            ->  the block of the bucket, on all ranks
///     Commit   the owner's residual is what is left of its shard; other shards were handed over
///
/// Until Commit the residuals are only read, so a step that is not applied leaves them as they are.
/// A residual may hold entries outside the rank's own shard: they go to their owner in the next
/// step. All messages are dense, or few, and stay on the node.

#pragma once

#include <cstdint>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/dense_block.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/collectives/topology.h"
#include "csrc/comm/group_communicator.h"
#include "csrc/comm/nodes.h"

namespace hvd_sparse {

/// The communicators of this rank's node, and of the owners of its shard on all nodes.
struct NodeGroups {
  NodeGroups(Communicator* comm, NodePlace place)
      : node(comm, comm->Rank() - place.local_rank, 1, place.local_size),
        between(comm, place.local_rank, place.local_size, comm->Size() / place.local_size) {}

  GroupCommunicator node, between;
};

class NodeSum {
 public:
  NodeSum(std::int64_t numel, NodePlace place) : numel_(numel), place_(place) {}

  NodePlace place() const { return place_; }
  Range shard() const { return ShardOf(numel_, place_.local_rank, place_.local_size); }

  /// The sum of this rank's shard; valid after Add, to select from and to settle in.
  Span<float> values() { return sum_.view(); }

  /// Adds up the residuals in L - 1 rounds: in round r a rank sends the shard of local rank own + r
  /// and receives its own shard of the residual of own - r. Sends 4 d (L - 1) / L bytes (+
  /// headers). The order of adding is that of the rounds, so equal residuals give equal bits.
  ///
  /// Agrees with all ranks of the node (see CollectiveContext::Agree): `identity` gets the worst
  /// verdict of the node. Returns true if the sums of this rank's shard are finite.
  bool Add(Span<const float> residual, BlockHeader* identity, CollectiveContext& ctx);

  /// Gathers the finished blocks of all shards, each of at most `room` entries at positions in its
  /// shard, into the block of the whole bucket, on all ranks of the node alike. Takes ceil(log2 L)
  /// rounds.
  void Gather(std::int64_t room, SparseBlock* block, CollectiveContext& ctx) const;

  /// Sets the residual to the rest of the sum, and to zero outside this rank's shard.
  void Commit(Span<float> residual);

 private:
  const std::int64_t numel_;
  const NodePlace place_;
  DenseBlock sum_, outgoing_, incoming_;
};

}  // namespace hvd_sparse

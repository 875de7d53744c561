/// Hierarchical: dense inside a node, sparse between nodes.
///
///     the L ranks of a node add up their residuals, gradients included; each owns a shard
///     an owner selects from its shard and runs gtopk with its owners on the other nodes
///     the finished shards go to all ranks of the node
///
/// Rounds, for N = P / L nodes: L - 1 on the node, those of gtopk between N ranks, ceil(log2 L) on
/// the node. Sent by each rank: 4 d (L - 1) / L and 8 k (L - 1) / L bytes inside the node, and
/// 8 (k / L) log2 N between nodes (+ headers): 1 / L of what gtopk's rounds send there.
/// Use it where a node's ranks share one network card, and talk to each other much faster than
/// through it.
///
/// Entries are selected from the sum of a node, not from each rank's own residual: up to k of N
/// sums instead of k of P gradients, so the result is nearer to the exact top-k. Entries that were
/// not delivered stay with the owner of their shard. With one rank on a node this is gtopk, bit for
/// bit; on one node alone, the exact selection from the whole sum.
///
/// The part inside a node is csrc/exchange/node_sum.cc; this file is the part between nodes.

#include "csrc/collectives/collectives.h"

namespace hvd_sparse {
namespace {

const GTopK kBetweenNodes;

}  // namespace

void Hierarchical::Trim(std::int64_t k, Span<float> residual, const Kernels& kernels,
                        SparseBlock* selected) const {
  kBetweenNodes.Trim(k, residual, kernels, selected);
}

void Hierarchical::Run(SparseBlock* block, CollectiveContext& ctx) const {
  kBetweenNodes.Run(block, ctx);
}

}  // namespace hvd_sparse

/// Hierarchical: dense inside a node, sparse between nodes.
///
///     the L ranks of a node add up their residuals, gradients included; each owns a shard of it
///     an owner selects from its shard, and runs gtopk with the owners of that shard elsewhere
///     the finished shards go to all ranks of the node
///
/// Rounds, for N = P / L nodes: L - 1 on the node, those of gtopk between N ranks, ceil(log2 L) on
/// the node. Sent by each rank: 4 d (L - 1) / L and 8 k (L - 1) / L bytes inside the node, and
/// 8 (k / L) log2 N between nodes (+ headers): 1 / L of what gtopk's rounds send there.
/// Use it where a node's ranks share one network card, and talk to each other much faster than
/// through it.
///
/// The sum of a node is selected from, not the ranks' own entries: up to k of N sums instead of k
/// of P gradients, so what is applied is nearer to the best. What was not delivered stays with the
/// owner of its shard. With one rank on a node this is gtopk, bit for bit; on one node alone, the
/// exact selection from the whole sum.
///
/// What happens on the node is in csrc/exchange/node_sum.cc; here is what happens between nodes.

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

/// gTop-k: the k largest entries of the sum, approximately, in log2 P rounds.
///
///     a (+) b = TopK(a + b, k);  round r: swap blocks with rank XOR 2^r, keep a (+) b
///
/// Rounds: log2 P for a power of two, else floor(log2 P) + 2.
/// Sent by each rank: 8 k log2 P bytes (+ headers); a guest 8 k, its host 8 k more.
/// Use it where latency and bytes both count: many ranks, small density. The result is not always
/// the exact top-k of the sum: an entry that a merge drops may have grown in a later one.
///
/// With `slack` s the merges before the last keep ceil(s k) entries, and the last one k. What is
/// sent after the first round is s times as long, and the result nearer to the exact top-k. s = 1
/// is the paper.
///
/// Entries that a merge drops must stay in the residual of some rank. Every entry of a rank's
/// running block therefore carries the survived bit: is this rank's own value part of it? It is set
/// when the cube starts, so that a host answers for its guest too; an entry that came from a
/// partner alone has none, even if this rank had sent and lost the same index before.
///
/// Narrow values: before round r, 2^r ranks of the cube hold the same block and round it alike. The
/// lowest of them keeps the errors, of entries that its partners sent too, and forgets those of
/// entries that a merge drops. A guest keeps the errors of its own values. The finished block is
/// not rounded; a guest receives it verbatim.
///
/// Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low
/// Bandwidth Networks", ICDCS 2019, https://arxiv.org/abs/1901.04359; recursive doubling instead of
/// its tree and broadcast, any P, and the survived bits are ours.
///
/// Hierarchical is gTop-k between nodes, and dense inside a node.
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
/// The part inside a node is csrc/exchange/node_sum.cc.

#include <algorithm>
#include <cmath>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {

std::int64_t KeptBeforeTheLast(std::int64_t k, std::int64_t numel,
                               const CollectiveOptions& options) {
  const double kept = std::ceil(options.slack * static_cast<double>(k));
  if (kept >= static_cast<double>(numel)) return std::max(k, numel);
  return static_cast<std::int64_t>(kept);
}

void RunGTopK(SparseBlock* block, CollectiveContext& ctx) {
  const FoldedCube cube{ctx.comm.Rank(), ctx.comm.Size()};
  SparseBlock& theirs = ctx.scratch.theirs;
  const std::int64_t kept = KeptBeforeTheLast(ctx.k, ctx.numel, ctx.options),
                     room = std::max(ctx.capacity, kept);
  block->header().kept = static_cast<std::uint32_t>(kept);

  if (cube.IsGuest()) {
    ctx.Narrow(block, true);
    ctx.Send(*block, cube.Host(), "gtopk, to the host");
    ctx.Receive(block, &theirs, ctx.capacity, cube.Host(), "gtopk, from the host");
    ctx.KeepErrorsOf(theirs, /*survived_only=*/true);
    block->CopyFrom(theirs);
    return;
  }

  if (cube.HasGuest()) {
    ctx.Receive(block, &theirs, ctx.capacity, cube.Guest(), "gtopk, from the guest");
    ctx.MergeInto(block, theirs);
    ctx.KeepTopK(block, kept);
  }
  MarkSurvived(block);

  int round = 0;
  for (int distance = 1; distance < cube.Core(); distance *= 2) {
    const bool last = 2 * distance == cube.Core();
    ctx.Narrow(block, cube.IsLowest(distance));
    ctx.Swap(block, &theirs, room, cube.Partner(distance), Concat("gtopk, round ", ++round));
    ctx.MergeInto(block, theirs);
    ctx.KeepTopK(block, last ? ctx.k : kept);
    ctx.KeepErrorsOf(*block);
  }

  if (cube.HasGuest()) ctx.Send(*block, cube.Guest(), "gtopk, to the guest", Content::kVerbatim);
}

}  // namespace hvd_sparse

/// Shard top-k: the largest sums of every shard, for bytes that do not grow with the ranks.
///
///     the bucket is cut into P shards; each rank sends every shard's entries to its owner;
///     an owner adds them to its residual, and takes the largest entries of its shard from there;
///     what the owners have taken goes to all ranks
///
/// Rounds: 1 with P - 1 messages, and ceil(log2 P).
/// Sent by each rank: 8 k (P - 1) / P bytes of its own entries and 8 s k (P - 1) / P of sums (+
/// headers), for the option sums = s: whatever P is. Use it where there are more than s ranks.
///
/// A sum that is not sent on waits in the residual of its owner, complete with what this rank has
/// there itself, and grows until it is among the largest. So no entry returns to the rank that
/// sent it, and none is sent to an owner twice. A rank selects only outside its own shard, all of
/// which the owner compares anyway; see csrc/exchange/shard_owner.h.
///
/// The reduce-scatter of selected entries is that of Ok-Topk (Li and Hoefler, "Near-optimal sparse
/// allreduce for distributed deep learning", PPoPP 2022, https://arxiv.org/abs/2201.07598); error
/// feedback on both sides is that of DoubleSqueeze (Tang et al., ICML 2019,
/// https://arxiv.org/abs/1905.05957).

#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {
namespace {

/// Copies the entries `range` of `from` behind the first `filled` of `to`, which is being written.
void Append(const SparseBlock& from, Range range, std::int64_t filled, SparseBlock* to) {
  const auto count = static_cast<std::size_t>(range.size());
  std::memcpy(to->indices() + filled, from.indices() + range.begin, count * sizeof(Index));
  std::memcpy(to->values() + filled, from.values() + range.begin, count * sizeof(float));
}

/// Makes `part` the block's entries in a shard, with rounded values that no other rank holds.
void CutOut(const SparseBlock& block, Range shard, CollectiveContext* ctx, SparseBlock* part) {
  const Range range = block.EntriesIn(shard);
  part->Reset(range.size());
  Append(block, range, 0, part);
  part->header() = block.header();
  part->Finish(range.size());
  ctx->Narrow(part, /*keeps_errors=*/true);
}

/// Sends each shard's entries to its owner, and receives those of the own shard from all ranks.
/// Rank r starts with rank r + 1, so that not all ranks send to the same owner first.
std::vector<SparseBlock>& SendToOwners(SparseBlock* block, CollectiveContext* ctx) {
  const int rank = ctx->comm.Rank(), size = ctx->comm.Size();
  std::vector<SparseBlock>&parts = ctx->scratch.parts, &arrived = ctx->scratch.blocks;
  parts.resize(std::max(parts.size(), static_cast<std::size_t>(size)));
  arrived.resize(std::max(arrived.size(), static_cast<std::size_t>(size)));
  const auto at = [](std::vector<SparseBlock>& blocks, int owner) {
    return &blocks[static_cast<std::size_t>(owner)];
  };
  const Range own = ShardOf(ctx->numel, rank, size);
  CutOut(*block, own, ctx, at(arrived, rank));
  for (int first = 1; first < size; first += kMessagesAtOnce) {
    std::vector<BlockOut> out;
    std::vector<BlockIn> in;
    for (int distance = first; distance < std::min(size, first + kMessagesAtOnce); ++distance) {
      const int to = (rank + distance) % size, from = (rank + size - distance) % size;
      CutOut(*block, ShardOf(ctx->numel, to, size), ctx, at(parts, to));
      out.push_back({to, at(parts, to)});
      in.push_back({from, at(arrived, from), own.size()});
    }
    ctx->MoveBlocks(block, out, in, "shard_topk, to the owners");
  }
  return arrived;
}

/// Gathers what the owners have taken into the block.
void Gather(SparseBlock* block, CollectiveContext* ctx) {
  const std::int64_t room = LongestShard(ctx->numel, ctx->comm.Size());
  ctx->Narrow(block, /*keeps_errors=*/true);  // no other rank holds these sums
  JoinShards(ctx->AllgatherBlocks(block, room, "shard_topk, gather, round"), block, *ctx);
}

}  // namespace

void JoinShards(const std::vector<SparseBlock>& owners, SparseBlock* block,
                const CollectiveContext& ctx) {
  const int size = ctx.comm.Size();
  std::int64_t total = 0, filled = 0;
  for (int owner = 0; owner < size; ++owner) {
    total += owners[static_cast<std::size_t>(owner)].count();
  }
  const BlockHeader identity = block->header();
  block->Reset(total);
  for (int owner = 0; owner < size; ++owner) {
    const SparseBlock& part = owners[static_cast<std::size_t>(owner)];
    Append(part, {0, part.count()}, filled, block);
    filled += part.count();
  }
  block->header() = identity;
  block->Finish(total);
  try {
    CheckPositions(*block, ctx.numel);
  } catch (const Error& error) {
    Throw(error.kind(), "in ", ctx.what, ", the entries of all owners together: ", error.what());
  }
}

void RunShardTopK(SparseBlock* block, CollectiveContext& ctx) {
  if (ctx.comm.Size() == 1) return MarkSurvived(block);
  std::vector<SparseBlock>& arrived = SendToOwners(block, &ctx);
  ctx.take_sums(&arrived, block);
  Gather(block, &ctx);
  MarkSurvived(block);
}

}  // namespace hvd_sparse

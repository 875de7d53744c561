/// Declarations of the collectives; each is defined and described in the file of its name.

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// The most messages to different ranks that a collective has in flight at once; others wait.
inline constexpr int kMessagesAtOnce = 32;

/// The `run` of each collective, see sparse_allreduce.h.
void RunAllgather(SparseBlock* block, CollectiveContext& ctx);
void RunGTopK(SparseBlock* block, CollectiveContext& ctx);
void RunRecursiveDoubling(SparseBlock* block, CollectiveContext& ctx);
void RunShardTopK(SparseBlock* block, CollectiveContext& ctx);

/// For shard_topk: makes `block`, which keeps its header but for the count, of what the owners have
/// taken, in rank order, since shards ascend. Throws ExchangeFailed unless positions ascend.
void JoinShards(const std::vector<SparseBlock>& owners, SparseBlock* block,
                const CollectiveContext& ctx);

/// Returns how many entries the merges of gtopk before the last one keep, of k that are asked for.
std::int64_t KeptBeforeTheLast(std::int64_t k, std::int64_t numel,
                               const CollectiveOptions& options);

}  // namespace hvd_sparse

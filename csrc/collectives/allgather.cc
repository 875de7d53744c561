/// Allgather: every rank gets every block and sums them all.
///
/// Rounds: ceil(log2 P) (bruck.cc). Sent by each rank: 8 k (P - 1) bytes (+ headers), where k is
/// the mean count; counts may differ between ranks. Exact: everything selected is delivered. Best
/// for few ranks (P <= 4) or a tiny k; the result holds up to k P entries.
///
/// Selection by top-k with this collective is TopK-SGD (Lin et al., "Deep Gradient Compression",
/// ICLR 2018, https://arxiv.org/abs/1712.01887).

#include <vector>

#include "csrc/collectives/collectives.h"

namespace hvd_sparse {

void RunAllgather(SparseBlock* block, CollectiveContext& ctx) {
  ctx.Narrow(block, true);
  std::vector<SparseBlock>& blocks = ctx.AllgatherBlocks(block, ctx.capacity, "allgather, round");
  const Verdict verdict = block->header().verdict;
  block->CopyFrom(ctx.SumInRankOrder(&blocks));
  block->header().verdict.Note(verdict);
  MarkSurvived(block);
}

}  // namespace hvd_sparse

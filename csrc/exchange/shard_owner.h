/// What a rank does as the owner of its shard (`shard_topk`): sums that arrive join its residual,
/// and the largest entries of the shard leave it for all ranks.
///
/// The residual of the own shard so holds what all ranks are yet to apply there; the rest of a
/// rank's residual is its own, as ever. Nothing else is kept from step to step: if the ranks or
/// their shards change, what waits is in a residual, and is selected from there.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/exchange/segments.h"
#include "csrc/exchange/step_record.h"
#include "csrc/kernels/kernels.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

class ShardOwner {
 public:
  /// Owns a shard of `range` of the bucket, which `size` ranks sum, as the `rank`-th of them.
  ShardOwner(const StepRecord& record, Range range, int rank, int size);

  /// The shard; as all positions here, counted from the start of `range`.
  Range shard() const { return shard_; }

  /// Adds the entries that arrived from each rank to the residual of `range`, and makes `sums` the
  /// entries to send on: of each segment the largest of the shard, as many as `sums` times the
  /// mean number of those that a rank has sent here. Notes in the header of `sums`, which it
  /// keeps, if a sum overflows.
  void Take(std::vector<SparseBlock>* arrived, Span<float> residual, CollectiveContext* ctx,
            SparseBlock* sums);

  /// Undoes Take.
  void PutBack(Span<float> residual, const Kernels& kernels);

  /// The entries that left the residual in this step; valid after Take.
  const SparseBlock& taken() const { return taken_; }

  /// Begins a step, in which nothing has been taken.
  void Begin();

 private:
  std::vector<std::int64_t> Quotas(const std::vector<SparseBlock>& arrived, double sums) const;

  const Range shard_;
  const int size_;
  const std::unique_ptr<const Sparsifier> top_k_;
  std::vector<Range> parts_;  // of the segments in the shard
  Segments segments_;         // the same
  std::vector<SelectionState> states_;
  SparseBlock taken_;
  bool has_taken_ = false;
  std::vector<std::pair<Index, float>> arrived_, added_;  // sums, and residuals before them
};

}  // namespace hvd_sparse

/// The step of a bucket that is summed dense, in place of selecting and exchanging blocks.
///
///     Take      residual + gradients  ->  messages of a ShardSum; rounding errors remain
///     Reduce    the sum over all ranks  ->  the gradients
///     PutBack   what was taken returns to the residual
///
/// Nodes of several ranks sum their residuals first (node_sum.h). A rank's shard of that sum is
/// summed over the nodes, and the finished shards go to all ranks of the node. Then nothing leaves
/// the residual before NodeSum::Commit.

#ifndef HVD_SPARSE_EXCHANGE_DENSE_STEP_H_
#define HVD_SPARSE_EXCHANGE_DENSE_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/collectives/dense_block.h"
#include "csrc/collectives/shard_sum.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/node_sum.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/dense_work.h"

namespace hvd_sparse {

class DenseStep {
 public:
  /// `node` is null unless nodes are summed first, on the CPU; it outlives this object. `work` is
  /// that of the bucket's device.
  DenseStep(const BucketSpec& spec, NodePlace place, NodeSum* node,
            std::unique_ptr<DenseWork> work);

  /// Allocates the memory of all steps, unless that has been done.
  void Prepare() { sum_.Prepare(); }

  /// Adds `inflow`, a view for each gradient, to the residual and, unless nodes are summed first,
  /// moves it to the messages. Returns how many results were not finite. Needs Prepare; does not
  /// fail.
  std::int64_t Take(const std::vector<GradView>& inflow, float scale, const Launch& launch,
                    const Kernels& kernels);

  /// Sums over all ranks and writes the result into the gradients. `identity` is the header of this
  /// rank's messages, and gets the verdict on the step.
  void Reduce(const Launch& launch, BlockHeader* identity, CollectiveContext* ctx);

  /// Like Reduce, but if nodes are summed first: `inside` is the context of this rank's node, and
  /// `between` that of the owners of its shard.
  void ReduceOverNodes(const Launch& launch, BlockHeader* identity, CollectiveContext* inside,
                       CollectiveContext* between);

  /// The number of results that are not finite in the number type of their gradient.
  std::int64_t overflows() const { return overflows_; }

  void PutBack(Span<float> residual);

 private:
  /// Calls part(gradient, range in the bucket) for the part of each gradient in a range.
  template <typename Part>
  void ForEachGradient(Range range, const Part& part) const;

  void Write(Range range, Span<const float> sums, Range owned, Span<float> residual, int owners,
             const Launch& launch);
  void GatherOnNode(BlockHeader* identity, CollectiveContext* inside);

  std::vector<std::int64_t> begins_;  // of each gradient, and past the last one
  const NodePlace place_;
  NodeSum* const node_;
  ShardSum sum_;
  std::vector<DenseBlock> shards_;  // finished, by local rank; if nodes are summed first

  std::vector<Feedback> feedback_;  // of each piece
  std::int64_t overflows_ = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_DENSE_STEP_H_

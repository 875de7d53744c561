/// A step by calls that sums nodes first, with any collective between them: Select only
/// accumulates; Reduce adds up the residuals of the node, selects from this rank's shard of the
/// sum, exchanges that between the owners of the shard on all nodes, and gathers the finished
/// shards on the node. Nothing leaves the residual before Commit.

#pragma once

#include <cstdint>

#include "csrc/comm/nodes.h"
#include "csrc/exchange/block_exchange.h"
#include "csrc/exchange/bucket_step.h"
#include "csrc/exchange/node_sum.h"
#include "csrc/exchange/segments.h"

namespace hvd_sparse {

class NodeStep final : public BucketStep {
 public:
  NodeStep(StepRecord* record, NodePlace place);

  void PutBack(const Kernels& kernels) override { blocks_.PutBackVelocity(kernels); }
  void Commit() override { node_.Commit(record_.launch.residual); }

 private:
  std::int64_t Take(const Kernels& kernels) override;
  void Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) override;

  CollectiveContext ContextOf(Communicator& comm, const Kernels& kernels);

  NodeSum node_;
  BlockExchange blocks_;
  const Segments segments_;       // of this rank's shard
  std::int64_t gather_room_ = 0;  // the most entries that a shard of the node delivers
};

}  // namespace hvd_sparse

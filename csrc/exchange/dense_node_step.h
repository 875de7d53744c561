/// A dense step that sums nodes first: the residuals of the node's ranks are added up (node_sum.h),
/// a rank's shard of that sum is summed over the nodes, and the finished shards go to all ranks of
/// the node. Nothing leaves the residual before Commit.

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/collectives/dense_block.h"
#include "csrc/exchange/dense_step.h"
#include "csrc/exchange/node_sum.h"

namespace hvd_sparse {

class DenseNodeStep final : public DenseStep {
 public:
  /// On the CPU.
  DenseNodeStep(StepRecord* record, NodePlace place);

  void PutBack(const Kernels& /*kernels*/) override {}
  void Commit() override { node_.Commit(record_.launch.residual); }

 private:
  std::int64_t Take(const Kernels& kernels) override;
  void Sum(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) override;

  void GatherOnNode(BlockHeader* identity, CollectiveContext* inside);

  NodeSum node_;
  std::vector<DenseBlock> shards_;  // finished, by local rank
};

}  // namespace hvd_sparse

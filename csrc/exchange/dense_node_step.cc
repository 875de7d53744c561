#include "csrc/exchange/dense_node_step.h"

#include <algorithm>

#include "csrc/collectives/topology.h"

namespace hvd_sparse {

DenseNodeStep::DenseNodeStep(StepRecord* record, NodePlace place)
    : DenseStep(record, place, NodeSum(record->numel, place).shard()),
      node_(record->numel, place),
      shards_(static_cast<std::size_t>(place.local_size)) {}

std::int64_t DenseNodeStep::Take(const Kernels& kernels) {
  sum_.Prepare();
  record_.stats.selected = record_.numel;
  const std::int64_t not_finite = feedback_.Begin(kernels);
  return not_finite + feedback_.Accumulate(kernels);
}

void DenseNodeStep::Sum(Communicator& comm, const Kernels& kernels,
                        GpuCollectives* /*gpu_collectives*/) {
  const NodePlace place = node_.place();
  NodeGroups groups(&comm, place);
  CollectiveContext inside = record_.ContextOf(groups.node, kernels);
  CollectiveContext between = record_.ContextOf(groups.between, kernels);
  BlockHeader identity = record_.Identity();
  const bool finite = node_.Add(record_.launch.residual, &identity, inside);
  const Span<float> values = node_.values();
  if (!finite) std::fill(values.begin(), values.end(), 0.0f);  // no rank will apply this step
  if (sum_.Take(values) > 0) identity.verdict.Note(Verdict::Overflow());
  DenseBlock& own = shards_[static_cast<std::size_t>(place.local_rank)];
  own.Reset(values.size);
  const auto keep = [&](Range range, Span<const float> sums) {
    std::copy(sums.begin(), sums.end(), own.view().begin() + range.begin);
  };
  sum_.Run(values, keep, &identity, &between);
  GatherOnNode(&identity, &inside);
  for (int local_rank = 0; local_rank < place.local_size; ++local_rank) {
    Write(ShardOf(record_.numel, local_rank, place.local_size),
          shards_[static_cast<std::size_t>(local_rank)].view(), node_.shard(), values, place.nodes);
  }
  record_.AddUp(&inside);
  record_.AddUp(&between);
  Finish(identity.verdict);
}

/// Sends the finished shard to all ranks of the node and receives theirs, as float32.
void DenseNodeStep::GatherOnNode(BlockHeader* identity, CollectiveContext* inside) {
  const int own = node_.place().local_rank, size = node_.place().local_size;
  DenseBlock& finished = shards_[static_cast<std::size_t>(own)];
  finished.Identify(*identity);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int distance = 1; distance < size; ++distance) {
    const int to = (own + distance) % size, from = (own + size - distance) % size;
    DenseBlock& theirs = shards_[static_cast<std::size_t>(from)];
    theirs.Reset(ShardOf(record_.numel, from, size).size());
    out.push_back({to, finished.message(), finished.message_bytes()});
    in.push_back({from, theirs.message(), theirs.message_bytes()});
  }
  inside->Transfer(out, in, "shard_sum, to the node");
  for (const Incoming& message : in) {
    DenseBlock& theirs = shards_[static_cast<std::size_t>(message.peer)];
    inside->Reading(message.peer, [&] {
      theirs.ParseInPlace(message.bytes);
      theirs.CheckValues();
    });
    inside->AgreeOnFormat(theirs.header().format, message.peer);
    inside->Agree(identity, theirs.header(), message.peer);
  }
}

}  // namespace hvd_sparse

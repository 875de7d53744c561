#include "csrc/exchange/node_step.h"

#include <algorithm>

#include "csrc/base/process.h"
#include "csrc/collectives/topology.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

Segments SegmentsIn(Range shard, const StepRecord& record, Range spared = {}) {
  return Segments(record.spec.segment_numels, record.spec.max_ks, shard, *record.sparsifier,
                  spared);
}

}  // namespace

NodeStep::NodeStep(StepRecord* record, NodePlace place)
    : BucketStep(record),
      node_(record->numel, place),
      blocks_(record, node_.shard(), place),
      segments_(SegmentsIn(node_.shard(), *record, blocks_.spared())) {
  for (int rank = 0; rank < place.local_size; ++rank) {
    const Range shard = ShardOf(record->numel, rank, place.local_size);
    const std::int64_t selected = place.nodes * SegmentsIn(shard, *record).capacity();
    const bool has_more = record->collective.has_owners;
    const std::int64_t most = has_more ? shard.size() : std::min(selected, shard.size());
    gather_room_ = std::max(gather_room_, most);
  }
}

std::int64_t NodeStep::Take(const Kernels& kernels) {
  blocks_.Begin();
  const std::int64_t not_finite = feedback_.Begin(kernels);
  return not_finite + feedback_.Accumulate(kernels);
}

/// Returns the context of a collective that takes this rank's shard.
CollectiveContext NodeStep::ContextOf(Communicator& comm, const Kernels& kernels) {
  CollectiveContext ctx = record_.ContextOf(comm, kernels);
  ctx.k = segments_.Asked(record_.launch.ks);
  ctx.capacity = segments_.capacity();
  ctx.numel = node_.shard().size();
  return ctx;
}

void NodeStep::Sum(Communicator& comm, const Kernels& kernels,
                   GpuCollectives* /*gpu_collectives*/) {
  NodeGroups groups(&comm, node_.place());
  CollectiveContext inside = ContextOf(groups.node, kernels);
  BlockHeader identity = record_.Identity();
  const bool finite = node_.Add(record_.launch.residual, &identity, inside);
  record_.AddUp(&inside);
  record_.own_verdict = identity.verdict;

  SparseBlock &selected = blocks_.selected(), &reduced = blocks_.reduced();
  selected.Reset(0);
  selected.Finish(0);
  if (finite) {  // else no rank will apply this step
    segments_.Select(*record_.sparsifier, nullptr, record_.launch.ks, record_.launch.states,
                     node_.values(), kernels, &selected);
    record_.collective.Trim(inside.k, node_.values(), kernels, &selected);
  }
  record_.stats.selected = selected.count();
  if (CountNotCarried(record_.spec.wire.values, {selected.values(), selected.count()}) > 0) {
    record_.own_verdict.Note(Verdict::Overflow());
  }
  CollectiveContext between = ContextOf(groups.between, kernels);
  blocks_.Reduce(&between, node_.values());

  // Finished sums are sent as they are.
  CollectiveContext back = ContextOf(groups.node, kernels);
  back.wire = {};
  back.numel = record_.numel;  // shards differ in length; Gather knows each
  reduced.header().format = back.wire.Id();
  reduced.header().kept = 0;  // differs between shards
  node_.Gather(gather_room_, &reduced, back);
  record_.AddUp(&back);
  record_.stats.settle_begin = SteadySeconds();  // all rounds lie before it
  blocks_.Scatter(node_.shard(), node_.values(), groups.between.Size(), kernels);
  blocks_.ForgetRounding();      // the sum took the errors; the residual is as it was
  blocks_.MaskReduced(kernels);  // all ranks of a node share in its sum
  record_.verdict = reduced.header().verdict;
  record_.stats.reduced = reduced.count();
}

}  // namespace hvd_sparse

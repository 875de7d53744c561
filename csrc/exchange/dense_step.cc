#include "csrc/exchange/dense_step.h"

#include <algorithm>
#include <utility>

namespace hvd_sparse {
namespace {

Range RangeOf(std::int64_t numel, const NodeSum* node) {
  return node == nullptr ? Range{0, numel} : node->shard();
}

/// Returns the borders between gradients within a range, counted from its start.
std::vector<std::int64_t> CutsOf(const BucketSpec& spec, Range range) {
  std::vector<std::int64_t> cuts;
  std::int64_t border = 0;
  for (const std::int64_t numel : spec.gradient_numels) {
    border += numel;
    if (range.begin < border && border < range.end) cuts.push_back(border - range.begin);
  }
  return cuts;
}

DenseFormat FormatOf(const BucketSpec& spec) {
  return {spec.wire.values, static_cast<float>(spec.collective_options.sparsity)};
}

}  // namespace

DenseStep::DenseStep(const BucketSpec& spec, NodePlace place, NodeSum* node,
                     std::unique_ptr<DenseWork> work)
    : begins_{0},
      place_(place),
      node_(node),
      sum_(RangeOf(spec.Numel(), node).size(), CutsOf(spec, RangeOf(spec.Numel(), node)),
           FormatOf(spec), place.node, place.nodes, std::move(work)),
      shards_(node == nullptr ? 0 : static_cast<std::size_t>(place.local_size)) {
  for (const std::int64_t numel : spec.gradient_numels) begins_.push_back(begins_.back() + numel);
  feedback_.reserve(sum_.pieces());
}

template <typename Part>
void DenseStep::ForEachGradient(Range range, const Part& part) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), range.begin);
  for (auto gradient = static_cast<std::size_t>(after - begins_.begin()) - 1;
       gradient + 1 < begins_.size() && begins_[gradient] < range.end; ++gradient) {
    const Range common = Overlap({begins_[gradient], begins_[gradient + 1]}, range);
    if (common.size() > 0) part(gradient, common);
  }
}

std::int64_t DenseStep::Take(const std::vector<GradView>& inflow, float scale, const Launch& launch,
                             const Kernels& kernels) {
  const auto feedback_of = [&](std::size_t gradient, Range part) {
    return Feedback{inflow[gradient].Sub(part.begin - begins_[gradient], part.size()),
                    launch.decays[gradient], scale, launch.residual.Sub(part.begin, part.size())};
  };
  if (node_ != nullptr) {
    std::int64_t not_finite = 0;
    ForEachGradient({0, begins_.back()}, [&](std::size_t gradient, Range part) {
      not_finite += kernels.Accumulate(feedback_of(gradient, part));
    });
    return not_finite;
  }
  feedback_.clear();
  for (std::size_t piece = 0; piece < sum_.pieces(); ++piece) {  // each lies in one gradient
    ForEachGradient(sum_.range(piece), [&](std::size_t gradient, Range part) {
      feedback_.push_back(feedback_of(gradient, part));
    });
  }
  return sum_.AccumulateAndTake(feedback_);
}

/// Writes sums into the gradients. Errors of rounding to a narrow type are shared by the `owners`
/// of each entry, in units of the sum; `residual` is that of the entries `owned` by this rank.
void DenseStep::Write(Range range, Span<const float> sums, Range owned, Span<float> residual,
                      int owners, const Launch& launch) {
  const float loss_scale = 1.0f / (launch.output_scale * static_cast<float>(owners));
  ForEachGradient(range, [&](std::size_t gradient, Range part) {
    const bool is_own = owned.begin <= part.begin && part.end <= owned.end;
    sum_.work().Write({sums.Sub(part.begin - range.begin, part.size()), launch.output_scale,
                       launch.gradients[gradient].Sub(part.begin - begins_[gradient], part.size()),
                       is_own ? residual.Sub(part.begin - owned.begin, part.size()) : Span<float>(),
                       part.begin, loss_scale});
  });
}

void DenseStep::Reduce(const Launch& launch, BlockHeader* identity, CollectiveContext* ctx) {
  const Range whole{0, begins_.back()};
  const auto write = [&](Range range, Span<const float> sums) {
    Write(range, sums, whole, launch.residual, ctx->comm.Size(), launch);
  };
  sum_.Run(launch.residual, write, identity, ctx);
  overflows_ = sum_.work().Finish();
}

void DenseStep::ReduceOverNodes(const Launch& launch, BlockHeader* identity,
                                CollectiveContext* inside, CollectiveContext* between) {
  const bool finite = node_->Add(launch.residual, identity, *inside);
  const Span<float> values = node_->values();
  if (!finite) std::fill(values.begin(), values.end(), 0.0f);  // no rank will apply this step
  sum_.Take(values);
  DenseBlock& own = shards_[static_cast<std::size_t>(place_.local_rank)];
  own.Reset(values.size);
  const auto keep = [&](Range range, Span<const float> sums) {
    std::copy(sums.begin(), sums.end(), own.view().begin() + range.begin);
  };
  sum_.Run(values, keep, identity, between);
  GatherOnNode(identity, inside);
  for (int local_rank = 0; local_rank < place_.local_size; ++local_rank) {
    Write(ShardOf(begins_.back(), local_rank, place_.local_size),
          shards_[static_cast<std::size_t>(local_rank)].view(), node_->shard(), values,
          place_.nodes, launch);
  }
  overflows_ = sum_.work().Finish();
}

/// Sends the finished shard to all ranks of the node and receives theirs, as float32.
void DenseStep::GatherOnNode(BlockHeader* identity, CollectiveContext* inside) {
  const int own = place_.local_rank, size = place_.local_size;
  DenseBlock& finished = shards_[static_cast<std::size_t>(own)];
  finished.Identify(*identity);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int distance = 1; distance < size; ++distance) {
    const int to = (own + distance) % size, from = (own + size - distance) % size;
    DenseBlock& theirs = shards_[static_cast<std::size_t>(from)];
    theirs.Reset(ShardOf(begins_.back(), from, size).size());
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

void DenseStep::PutBack(Span<float> residual) {
  if (node_ == nullptr) sum_.PutBack(residual);  // else nothing has left it
}

}  // namespace hvd_sparse

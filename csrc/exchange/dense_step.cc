#include "csrc/exchange/dense_step.h"

#include <algorithm>

#include "csrc/base/process.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {
namespace {

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
  return {spec.wire.values, static_cast<float>(spec.collective_options.scale)};
}

}  // namespace

DenseStep::DenseStep(StepRecord* record, NodePlace place, Range summed)
    : BucketStep(record),
      sum_(summed.size(), CutsOf(record->spec, summed), FormatOf(record->spec), place.node,
           place.nodes, DenseWorkFor(record->spec.device), AggregationOf(record->spec)),
      begins_{0} {
  CheckRanks(record->spec, place.nodes);
  for (const std::int64_t numel : record->spec.gradient_numels) {
    begins_.push_back(begins_.back() + numel);
  }
  pieces_.reserve(sum_.pieces());
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

std::int64_t DenseStep::Take(const Kernels& kernels) {
  const Launch& launch = record_.launch;
  sum_.Prepare();
  const std::int64_t not_finite = feedback_.BeginInflow(kernels);
  pieces_.clear();
  for (std::size_t piece = 0; piece < sum_.pieces(); ++piece) {  // each lies in one gradient
    ForEachGradient(sum_.range(piece), [&](std::size_t gradient, Range part) {
      pieces_.push_back(
          {feedback_.inflow()[gradient].Sub(part.begin - begins_[gradient], part.size()),
           launch.decays[gradient], feedback_.scale(),
           launch.residual.Sub(part.begin, part.size())});
    });
  }
  record_.stats.selected = record_.numel;
  return not_finite + sum_.AccumulateAndTake(pieces_);
}

void DenseStep::Write(Range range, Span<const float> sums, Range owned, Span<float> residual,
                      int owners) {
  const Launch& launch = record_.launch;
  const float loss_scale = 1.0f / (launch.output_scale * static_cast<float>(owners));
  ForEachGradient(range, [&](std::size_t gradient, Range part) {
    const bool keeps_error =
        sum_.robust() == nullptr && owned.begin <= part.begin && part.end <= owned.end;
    sum_.work().Write(
        {sums.Sub(part.begin - range.begin, part.size()), launch.output_scale,
         launch.gradients[gradient].Sub(part.begin - begins_[gradient], part.size()),
         keeps_error ? residual.Sub(part.begin - owned.begin, part.size()) : Span<float>(),
         part.begin, loss_scale});
  });
}

void DenseStep::Sum(Communicator& comm, const Kernels& kernels,
                    GpuCollectives* /*gpu_collectives*/) {
  const Range whole{0, record_.numel};
  const Span<float> residual = record_.launch.residual;
  const auto write = [&](Range range, Span<const float> sums) {
    Write(range, sums, whole, residual, comm.Size());
  };
  BlockHeader identity = record_.Identity();
  CollectiveContext ctx = record_.ContextOf(comm, kernels);
  sum_.Run(residual, write, &identity, &ctx);
  record_.AddUp(&ctx);
  Finish(identity.verdict);
}

void DenseStep::Finish(Verdict verdict) {
  record_.overflows = sum_.work().Finish();
  record_.stats.settle_begin = SteadySeconds();
  record_.verdict = verdict;
  record_.stats.reduced = record_.numel;
  if (sum_.robust() == nullptr) return;
  record_.stats.averaged = sum_.OwnNumel();
  record_.stats.left_out = sum_.robust()->left_out();
}

void DenseStep::PutBack(const Kernels& /*kernels*/) { sum_.PutBack(record_.launch.residual); }

}  // namespace hvd_sparse

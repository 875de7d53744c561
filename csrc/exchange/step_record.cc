#include "csrc/exchange/step_record.h"

#include <iterator>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"

namespace hvd_sparse {

void BucketStats::SetDurations() {
  select_seconds = select_end - select_begin;
  exchange_seconds = exchange_end - exchange_begin;
}

StepRecord::StepRecord(int id, BucketSpec of_bucket)
    : id(id),
      spec(std::move(of_bucket)),
      numel(spec.Numel()),
      sparsifier(MakeSparsifier(spec.sparsifier, spec.sparsifier_options)),
      collective(FindCollective(spec.collective)) {
  CheckSpec(spec);
}

void StepRecord::Begin(Launch next) {
  launch = std::move(next);
  stats = {};
  stats.number = id;
  stats.bucket = spec.name;
  stats.step = steps++;
  stats.numel = numel;
  stats.ready = launch.ready != 0 ? launch.ready : SteadySeconds();
  for (std::size_t s = 0; s < launch.ks.size(); ++s) {
    if (spec.segment_numels[s] > 0) stats.asked += launch.ks[s];
  }
}

BlockHeader StepRecord::Identity() const {
  BlockHeader identity;
  identity.bucket = static_cast<std::uint32_t>(id);
  identity.step = static_cast<std::uint32_t>(stats.step);
  identity.asked = static_cast<std::uint32_t>(stats.asked);
  identity.format = spec.wire.Id();
  identity.route = stats.route;
  identity.verdict = own_verdict;
  return identity;
}

CollectiveContext StepRecord::ContextOf(Communicator& comm, const Kernels& kernels) {
  return {comm,        kernels,
          scratch,     stats.asked,
          stats.asked, "bucket '" + spec.name + "'",
          numel,       spec.collective_options,
          spec.wire};
}

void StepRecord::AddUp(CollectiveContext* ctx) {
  stats.bytes_sent += ctx->bytes_sent;
  stats.bytes_received += ctx->bytes_received;
  stats.rounds.insert(stats.rounds.end(), std::make_move_iterator(ctx->rounds.begin()),
                      std::make_move_iterator(ctx->rounds.end()));
}

void StepRecord::RequireKnown(int rank) const {
  if (verdict.Covers(own_verdict)) return;
  Throw(ErrorKind::kExchangeFailed, "rank ", rank, ": the result of bucket '", spec.name,
        "' knows of no NaN or Inf, and this rank does: what a rank has sent is damaged");
}

}  // namespace hvd_sparse

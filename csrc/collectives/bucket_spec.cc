#include "csrc/collectives/bucket_spec.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

std::int64_t Sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

/// Throws InvalidArgument unless a bucket's blocks can be sent with binary values: one number is
/// the mean of one segment's entries, which are of one sign, and no sum is ever sent.
void CheckBinary(const BucketSpec& spec) {
  const auto is_filled = [](std::int64_t numel) { return numel > 0; };
  const auto filled =
      std::count_if(spec.segment_numels.begin(), spec.segment_numels.end(), is_filled);
  Require(filled <= 1, "bucket '", spec.name, "': binary values take one segment, got ", filled);
  Require(spec.sparsifier == "one_sign", "bucket '", spec.name,
          "': binary values take the sparsifier 'one_sign', got '", spec.sparsifier, "'");
  Require(spec.collective == "allgather", "bucket '", spec.name,
          "': binary values take the collective 'allgather', got '", spec.collective, "'");
}

}  // namespace

std::int64_t BucketSpec::Numel() const { return Sum(gradient_numels); }

std::int64_t BucketSpec::MaxAsked() const {
  std::int64_t asked = 0;
  for (std::size_t s = 0; s < max_ks.size(); ++s) asked += segment_numels[s] > 0 ? max_ks[s] : 0;
  return asked;
}

bool SumsNodes(const std::string& collective, bool nodes_first, int size, int local_size) {
  const Collective& one = FindCollective(collective);
  if (one.IsSparse()) return nodes_first;
  return one.rule == nullptr && 1 < local_size && local_size < size;
}

Aggregation AggregationOf(const BucketSpec& spec) {
  return {FindCollective(spec.collective).rule,
          static_cast<int>(spec.collective_options.bad_ranks)};
}

void CheckRanks(const BucketSpec& spec, int size) {
  const auto [rule, bad] = AggregationOf(spec);
  if (rule == nullptr || size == 1) return;
  Require(rule->LeastRanks(bad) <= size, "bucket '", spec.name, "': bad_ranks of ", rule->name,
          " must be at most ", (size - rule->more) / rule->factor, " between ", size, " ranks (",
          rule->factor, " bad_ranks + ", rule->more, " ranks at least), got ", bad);
}

void CheckSpec(const BucketSpec& spec) {
  const std::int64_t whole = spec.Numel();
  for (const std::int64_t numel : spec.gradient_numels) {
    Require(numel >= 0, "bucket '", spec.name, "': numel must be >= 0, got ", numel);
  }
  spec.collective_options.Check(Concat("bucket '", spec.name, "'"));
  Require(whole <= kMaxBucketNumel, "bucket '", spec.name, "' must have at most ", kMaxBucketNumel,
          " entries, got ", whole);
  Require(Sum(spec.segment_numels) == whole, "bucket '", spec.name, "': segments hold ",
          Sum(spec.segment_numels), " entries, gradients ", whole);
  Require(spec.max_ks.size() == spec.segment_numels.size(), "bucket '", spec.name,
          "': ", spec.max_ks.size(), " values of k for ", spec.segment_numels.size(), " segments");
  if (spec.wire.values == Values::kBinary) CheckBinary(spec);
  if (!spec.device.IsCpu()) {
    Require(!spec.nodes_first, "bucket '", spec.name,
            "': nodes_first adds up residuals on the CPU, and takes none on ", spec.device.Name());
  }
  for (std::size_t s = 0; s < spec.max_ks.size(); ++s) {
    const std::int64_t k = spec.max_ks[s], numel = spec.segment_numels[s];
    Require(numel >= 0, "bucket '", spec.name, "': numel must be >= 0, got ", numel);
    if (numel == 0) continue;
    Require(1 <= k && k <= numel, "bucket '", spec.name, "': k must lie in [1, ", numel, "], got ",
            k);
  }
}

void CheckGradients(const BucketSpec& spec, const char* argument,
                    const std::vector<GradView>& views) {
  Require(views.size() == spec.gradient_numels.size(), argument, " of bucket '", spec.name,
          "' must have size ", spec.gradient_numels.size(), ", got ", views.size());
  for (std::size_t i = 0; i < views.size(); ++i) {
    const GradView& view = views[i];
    Require(view.numel == spec.gradient_numels[i], argument, "[", i, "] of bucket '", spec.name,
            "' must have size ", spec.gradient_numels[i], ", got ", view.numel);
    Require(view.data != nullptr || view.numel == 0, argument, "[", i, "] of bucket '", spec.name,
            "' must have memory");
    Require(DType::kFloat32 <= view.dtype && view.dtype <= DType::kBFloat16, argument, "[", i,
            "] of bucket '", spec.name, "' has the unknown number type ",
            static_cast<int>(view.dtype));
  }
}

void CheckLaunch(const BucketSpec& spec, const Launch& launch) {
  const auto fits = [&](const char* argument, std::int64_t expected, std::int64_t got) {
    Require(expected == got, argument, " of bucket '", spec.name, "' must have size ", expected,
            ", got ", got);
  };
  fits("residual", spec.Numel(), launch.residual.size);
  if (launch.velocity.data != nullptr) {
    fits("velocity", spec.Numel(), launch.velocity.size);
    Require(launch.momentum >= 0 && launch.momentum < 1, "momentum of bucket '", spec.name,
            "' must lie in [0, 1), got ", launch.momentum);
  }
  CheckGradients(spec, "gradients", launch.gradients);
  fits("decays", static_cast<std::int64_t>(spec.gradient_numels.size()),
       static_cast<std::int64_t>(launch.decays.size()));
  fits("states", static_cast<std::int64_t>(spec.segment_numels.size()), launch.states.size);
  fits("ks", static_cast<std::int64_t>(spec.segment_numels.size()),
       static_cast<std::int64_t>(launch.ks.size()));
  for (const float decay : launch.decays) {
    Require(std::isfinite(decay), "decay of bucket '", spec.name, "' must be finite, got ", decay);
  }
  for (std::size_t s = 0; s < launch.ks.size(); ++s) {
    if (spec.segment_numels[s] == 0) continue;
    Require(1 <= launch.ks[s] && launch.ks[s] <= spec.max_ks[s], "k of bucket '", spec.name,
            "' must lie in [1, ", spec.max_ks[s], "], got ", launch.ks[s]);
  }
}

}  // namespace hvd_sparse

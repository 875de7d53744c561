#include "csrc/exchange/bucket.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/exchange/dense_node_step.h"
#include "csrc/exchange/dense_step.h"
#include "csrc/exchange/node_step.h"
#include "csrc/exchange/sparse_step.h"
#include "csrc/exchange/too_large.h"

namespace hvd_sparse {
namespace {

std::unique_ptr<BucketStep> StepFor(StepRecord* record, NodePlace place) {
  const bool several = place.local_size > 1;  // only if nodes are summed first
  if (!record->collective.IsSparse()) {
    if (several) return std::make_unique<DenseNodeStep>(record, place);
    return std::make_unique<DenseStep>(record, place);
  }
  if (several) return std::make_unique<NodeStep>(record, place);
  return std::make_unique<SparseStep>(record, place);
}

/// The range of what values on the wire carry, as shown to users.
const char* RangeOf(Values values) {
  return values == Values::kFloat16 ? "the range of float16 messages (5.5e11)"
                                    : "float32's range (3.4e38)";
}

/// The fault as shown to users, after the gradient's name.
std::string TextOf(GradientFault fault, Values values) {
  switch (fault) {
    case GradientFault::kBeyondFloat32:
      return Concat("exceeds ", RangeOf(values), ", alone or added to its residual or velocity");
    case GradientFault::kHoldsNonFinite:
      return "holds NaN or Inf";
    case GradientFault::kUnchecked:
      break;
  }
  return Concat("holds NaN or Inf, or exceeds ", RangeOf(values));
}

}  // namespace

Bucket::Bucket(int id, BucketSpec spec, NodePlace place)
    : record_(id, std::move(spec)), step_(StepFor(&record_, place)) {}

void Bucket::Select(Launch launch, int rank, const Kernels& kernels) {
  record_.Begin(std::move(launch));
  step_->Select(rank, kernels);
}

std::string Bucket::Problem() const {
  const Verdict verdict = record_.verdict;
  const std::string& name = record_.spec.name;
  if (verdict.IsOverflow()) {
    return Concat("the sum of the ",
                  record_.spec.nodes_first ? "residuals of a node or of all nodes" : "gradients",
                  " in bucket '", name, "' overflows ", RangeOf(record_.spec.wire.values));
  }
  if (verdict.IsBadGradient()) {
    return Concat("the gradient of rank ", verdict.rank(), " in bucket '", name, "' ",
                  TextOf(verdict.fault(), record_.spec.wire.values));
  }
  if (record_.overflows == 0) return "";
  return Concat("the sum of the gradients in bucket '", name, "' overflows in ", record_.overflows,
                " entries");
}

float Bucket::LargestKept(int ranks) const {
  const Verdict verdict = record_.verdict;
  // A bad gradient was not added to the residual, but it may be the residual that is too large.
  const bool is_too_large = verdict.IsBadGradient()
                                ? verdict.fault() != GradientFault::kHoldsNonFinite
                                : verdict.IsOverflow() || record_.overflows > 0;
  if (!is_too_large) return INFINITY;
  const Launch& launch = record_.launch;
  const float scale = launch.output_scale / launch.loss_scale;
  float largest = LargestCarried(record_.spec.wire.values) / 2 / static_cast<float>(ranks);
  for (const GradView& gradient : launch.gradients) {
    largest = std::min(largest, LargestSummand(gradient.dtype, scale, ranks));
  }
  return largest;
}

void Bucket::DropAbove(float largest, const Kernels& kernels) const {
  hvd_sparse::DropAbove(largest, record_.launch.residual, kernels);
  hvd_sparse::DropAbove(largest, record_.launch.velocity, kernels);
}

}  // namespace hvd_sparse

#include "csrc/exchange/step_layout.h"

#include <algorithm>
#include <numeric>

#include "csrc/base/error.h"

namespace hvd_sparse {

std::vector<OpGradients> OpGradients::Of(
    const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs) {
  std::vector<OpGradients> ops;
  for (const auto& [numel, segments] : pairs) ops.push_back({numel, segments});
  return ops;
}

StepLayout::StepLayout(std::vector<OpGradients> ops) : ops_(std::move(ops)), begins_(1) {
  for (const OpGradients& op : ops_) {
    Begin next = begins_.back();
    next.residual += op.ResidualNumel();
    next.state += op.segments;
    next.velocity += op.numel;
    begins_.push_back(next);
  }
}

void StepLayout::RequireFit(const Begin& sizes, bool velocities) const {
  const auto fits = [](const char* what, std::int64_t size, const char* unit, std::int64_t got) {
    Require(size == got, what, " must have ", size, " ", unit, ", got ", got);
  };
  fits("residual", end().residual, "elements", sizes.residual);
  fits("velocity", velocities ? end().velocity : 0, "elements", sizes.velocity);
  fits("states", end().state, "rows", sizes.state);
}

void StepLayout::Adopt(std::vector<DrivenBucket> buckets) {
  std::vector<std::size_t> first_op = {0}, bucket_of;
  for (const DrivenBucket& bucket : buckets) {
    Require(bucket.ops > 0, "a bucket must have ops, got ", bucket.ops);
    Require(bucket.is_dense() || (!bucket.ks.empty() && bucket.ks.front().first == 0),
            "the ks of bucket ", bucket.bucket, " must begin at step 0");
    bucket_of.insert(bucket_of.end(), static_cast<std::size_t>(bucket.ops), first_op.size() - 1);
    first_op.push_back(bucket_of.size());
  }
  Require(bucket_of.size() == ops_.size(), "the buckets must have ", ops_.size(), " ops, got ",
          bucket_of.size());
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    Require(ops_[i].segments > 0 || buckets[bucket_of[i]].is_dense(), "op ", i,
            " has no units of selection, so its bucket must be sent dense");
  }
  buckets_ = std::move(buckets);
  first_op_ = std::move(first_op);
  bucket_of_ = std::move(bucket_of);
  dense_before_ = {0};
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    const std::int64_t dense = this->bucket_of(i).is_dense() ? ops_[i].numel : 0;
    dense_before_.push_back(dense_before_.back() + dense);
  }
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
}

void StepLayout::Reorder(const std::vector<int>& order) {
  std::vector<std::size_t> wanted(order.begin(), order.end());
  std::vector<std::size_t> sorted = wanted, own = order_;
  std::sort(sorted.begin(), sorted.end());
  std::sort(own.begin(), own.end());
  Require(sorted == own, "an order must have each of the ", own.size(), " buckets once");
  order_ = std::move(wanted);
}

std::vector<std::size_t> StepLayout::OrderOf(const std::set<int>& ops) const {
  std::vector<int> found(buckets_.size());
  for (const int op : ops) {
    Require(0 <= op && op < static_cast<int>(size()), "op must lie in [0, ", size(), "), got ", op);
    ++found[bucket_of_[static_cast<std::size_t>(op)]];
  }
  std::vector<std::size_t> chosen;
  for (const std::size_t bucket : order_) {
    if (found[bucket] == 0) continue;
    Require(found[bucket] == buckets_[bucket].ops, "a step must have all ", buckets_[bucket].ops,
            " ops of a bucket, got ", found[bucket]);
    chosen.push_back(bucket);
  }
  return chosen;
}

bool StepLayout::Exchanges() const {
  return !std::all_of(buckets_.begin(), buckets_.end(),
                      [](const DrivenBucket& one) { return one.is_dense(); });
}

std::size_t StepLayout::DenseOps() const {
  std::size_t dense = 0;
  for (std::size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].segments > 0 && bucket_of(i).is_dense()) ++dense;
  }
  return dense;
}

}  // namespace hvd_sparse

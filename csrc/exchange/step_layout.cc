#include "csrc/exchange/step_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "csrc/base/error.h"

namespace hvd_sparse {

const std::vector<std::int64_t>& DrivenBucket::KsAt(std::int64_t step) const {
  const auto later =
      std::find_if(ks.begin(), ks.end(), [step](const auto& phase) { return phase.first > step; });
  return std::prev(later)->second;
}

StepLayout::StepLayout(std::vector<Piece> pieces) : pieces_(std::move(pieces)), begins_(1) {
  Require(!pieces_.empty(), "a StepDriver must have pieces, got none");
  for (const Piece& piece : pieces_) {
    Begin next = begins_.back();
    next.residual += piece.owed();
    next.state += piece.segments;
    next.velocity += piece.numel;
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
  std::vector<std::size_t> first_piece = {0}, bucket_of;
  for (const DrivenBucket& bucket : buckets) {
    Require(bucket.pieces > 0, "a bucket must have pieces, got ", bucket.pieces);
    Require(bucket.passes() || (!bucket.ks.empty() && bucket.ks.front().first == 0),
            "the ks of bucket ", bucket.bucket, " must begin at step 0");
    bucket_of.insert(bucket_of.end(), static_cast<std::size_t>(bucket.pieces),
                     first_piece.size() - 1);
    first_piece.push_back(bucket_of.size());
  }
  Require(bucket_of.size() == pieces_.size(), "the buckets must have ", pieces_.size(),
          " pieces, got ", bucket_of.size());
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    Require(pieces_[i].segments > 0 || buckets[bucket_of[i]].passes(), "piece ", i,
            " has no units of selection, so its bucket must pass");
  }
  buckets_ = std::move(buckets);
  first_piece_ = std::move(first_piece);
  bucket_of_ = std::move(bucket_of);
  passed_before_ = {0};
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::int64_t passing = this->bucket_of(i).passes() ? pieces_[i].numel : 0;
    passed_before_.push_back(passed_before_.back() + passing);
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

bool StepLayout::Exchanges() const {
  return !std::all_of(buckets_.begin(), buckets_.end(),
                      [](const DrivenBucket& one) { return one.passes(); });
}

std::size_t StepLayout::Passing() const {
  std::size_t passing = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].segments > 0 && bucket_of(i).passes()) ++passing;
  }
  return passing;
}

}  // namespace hvd_sparse

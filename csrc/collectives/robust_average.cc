#include "csrc/collectives/robust_average.h"

#include <algorithm>
#include <cfloat>
#include <numeric>

namespace hvd_sparse {

RobustAverage::RobustAverage(Aggregation aggregation, int ranks)
    : rule_(*aggregation.rule),
      bad_(aggregation.bad_ranks),
      ranks_(ranks),
      distances_(static_cast<std::size_t>(ranks * (ranks - 1) / 2)),
      chosen_(static_cast<std::size_t>(ranks)),
      left_out_(static_cast<std::size_t>(ranks)) {
  std::iota(chosen_.begin(), chosen_.end(), 0);
}

void RobustAverage::Begin() {
  std::fill(distances_.begin(), distances_.end(), 0.0);
  std::fill(left_out_.begin(), left_out_.end(), 0);
}

Span<float> RobustAverage::Row(int rank, std::int64_t numel) {
  numel_ = numel;
  values_.resize(std::max(values_.size(), static_cast<std::size_t>(ranks_ * numel)));
  return Span<float>(values_).Sub(rank * numel, numel);
}

void RobustAverage::Compare() {
  auto pair = distances_.begin();
  for (int a = 1; a < ranks_; ++a) {
    for (int b = 0; b < a; ++b) {
      *pair++ += SquaredDistance(values_.data() + a * numel_, values_.data() + b * numel_, numel_);
    }
  }
}

std::vector<float> RobustAverage::DistancesInShard() const {
  const double most = FLT_MAX / (2.0 * ranks_);
  std::vector<float> limited;
  for (const double one : distances_) limited.push_back(static_cast<float>(std::min(one, most)));
  return limited;
}

void RobustAverage::Choose(Span<const float> distances) {
  chosen_ = rule_.choose({ranks_, distances}, bad_);
}

void RobustAverage::Average(Span<float> sums) {
  std::vector<const float*> rows;
  for (const int rank : chosen_) rows.push_back(values_.data() + rank * numel_);
  std::vector<std::int64_t> outside(rows.size());
  AverageRows(rule_, bad_, rows, sums, outside);
  for (float& value : sums) value *= static_cast<float>(ranks_);
  for (std::int64_t& entries : left_out_) entries += sums.size;
  for (std::size_t i = 0; i < chosen_.size(); ++i) {
    left_out_[static_cast<std::size_t>(chosen_[i])] += outside[i] - sums.size;
  }
}

}  // namespace hvd_sparse

/// An owner's part in the averages of a rule (aggregation_rule.h): the values of all ranks, piece
/// by piece, and which of them are left out.
///
///     Row      the values of each rank in a piece
///     Compare  for rules that choose ranks: adds the piece to the distances
///     Average  the average of the piece
///
/// Distances are summed over all shards before ranks are chosen, so that all owners choose the
/// same.

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/aggregation_rule.h"

namespace hvd_sparse {

/// A rule, and how many bad ranks it bears; no rule: the sum.
struct Aggregation {
  const AggregationRule* rule = nullptr;
  int bad_ranks = 0;
};

class RobustAverage {
 public:
  RobustAverage(Aggregation aggregation, int ranks);

  /// True if the rule chooses ranks by their distances.
  bool ChoosesRanks() const { return rule_.choose != nullptr; }

  /// Begins a step.
  void Begin();

  /// Returns the memory for the values of a rank in a piece of `numel`; valid until another piece.
  Span<float> Row(int rank, std::int64_t numel);

  /// Adds the distances between the rows of a piece.
  void Compare();

  /// Returns this rank's part of the distances, a number for each pair of ranks. No sum of them
  /// over all ranks overflows: a bad rank may be as far away as it likes.
  std::vector<float> DistancesInShard() const;

  /// Chooses ranks by the distances, summed over all shards.
  void Choose(Span<const float> distances);

  /// Sets `sums` to the average of the rows of a piece, times the number of ranks.
  void Average(Span<float> sums);

  /// By rank, the number of entries of the own shard into whose average its values did not go.
  const std::vector<std::int64_t>& left_out() const { return left_out_; }

 private:
  const AggregationRule& rule_;
  const int bad_, ranks_;
  std::vector<float> values_;  // of a piece, rank by rank
  std::int64_t numel_ = 0;     // of the piece
  std::vector<double> distances_;
  std::vector<int> chosen_;
  std::vector<std::int64_t> left_out_;
};

}  // namespace hvd_sparse

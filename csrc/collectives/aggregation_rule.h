/// Rules by which an owner averages the ranks' values such that a minority of bad ranks cannot
/// steer the result, in place of their sum (shard_sum.h).
///
/// A rule may first choose ranks by the distances between their gradients, and may then leave out
/// extreme values at each position. Values of the ranks stand in rows, one for each rank.
///
/// Between n ranks, f of them bad:
///
///     median        at each position (Yin et al., "Byzantine-robust distributed learning: towards
///                   optimal statistical rates", ICML 2018, https://arxiv.org/abs/1803.01498)
///     trimmed_mean  at each position, without the f smallest and the f largest values (ibid.)
///     krum          of the rank whose n - f - 2 nearest others are nearest (Blanchard et al.,
///                   "Machine learning with adversaries", NeurIPS 2017,
///                   https://arxiv.org/abs/1703.02757)
///     multi_krum    the mean of the n - f - 2 ranks that are best in that (ibid.; their number is
///                   that of Damaskinos et al., "AggregaThor", MLSys 2019)
///     bulyan        krum chooses n - 2 f ranks, one after the other, of those that are left; at
///                   each position the mean of the n - 4 f of their values that are nearest to
///                   their median (El Mhamdi et al., "The hidden vulnerability of distributed
///                   learning in Byzantium", ICML 2018, https://arxiv.org/abs/1802.07927)

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// The distances between all ranks, squared: symmetric, 0 on the diagonal.
struct Distances {
  int ranks;
  Span<const float> values;  ///< of each pair b < a, in the order of a, then of b

  float Between(int a, int b) const;
};

/// Values at neighbouring positions, a row for each rank.
using Rows = Span<const float* const>;

struct AggregationRule {
  std::string name;
  /// The least number of ranks: `factor` times the bad ones, and `more`.
  int factor, more;
  /// Returns the ranks that the rule averages, in ascending order. Null: all of them.
  std::vector<int> (*choose)(const Distances& distances, int bad);
  /// Averages `width` values of rows that are sorted at each position, kSortedTogether entries
  /// apart, and sets the least and the largest value that went into each average. Null: their mean.
  void (*average)(const float* sorted, int rows, int bad, std::int64_t width, float* average,
                  float* least, float* largest);

  std::int64_t LeastRanks(std::int64_t bad) const { return factor * bad + more; }
};

/// Entries from one row to the next in what AggregationRule::average takes, and the most of them.
inline constexpr std::int64_t kSortedTogether = 512;

/// Returns all rules, in the order of their names.
const std::vector<AggregationRule>& AllRules();

/// Sets `average` to the rule's average of the rows that were chosen. Adds to each of `left_out`
/// the number of positions whose average a row did not go into.
void AverageRows(const AggregationRule& rule, int bad, Rows rows, Span<float> average,
                 Span<std::int64_t> left_out);

/// Returns the squared distance of two rows.
double SquaredDistance(const float* a, const float* b, std::int64_t numel);

}  // namespace hvd_sparse

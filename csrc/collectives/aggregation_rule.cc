#include "csrc/collectives/aggregation_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "csrc/kernels/clones.h"

namespace hvd_sparse {
namespace {

// ---- Ranks
// -------------------------------------------------------------------------------

/// Returns the sum of the distances from a rank to the nearest `count` others.
double Score(const Distances& distances, int rank, const std::vector<int>& others, int count) {
  std::vector<float> near;
  for (const int other : others) {
    if (other != rank) near.push_back(distances.Between(rank, other));
  }
  std::sort(near.begin(), near.end());
  near.resize(std::min(near.size(), static_cast<std::size_t>(std::max(1, count))));
  return std::accumulate(near.begin(), near.end(), 0.0);
}

/// Returns `ranks` by their score among themselves, the best one first; ties keep their order.
std::vector<int> ByScore(const Distances& distances, const std::vector<int>& ranks, int bad) {
  const int count = static_cast<int>(ranks.size()) - bad - 2;
  std::vector<std::pair<double, int>> scored;
  for (const int rank : ranks) scored.emplace_back(Score(distances, rank, ranks, count), rank);
  std::sort(scored.begin(), scored.end());
  std::vector<int> sorted;
  for (const auto& [score, rank] : scored) sorted.push_back(rank);
  return sorted;
}

std::vector<int> AllOf(const Distances& distances) {
  std::vector<int> ranks(static_cast<std::size_t>(distances.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> ChooseKrum(const Distances& distances, int bad) {
  return {ByScore(distances, AllOf(distances), bad).front()};
}

std::vector<int> ChooseMultiKrum(const Distances& distances, int bad) {
  std::vector<int> best = ByScore(distances, AllOf(distances), bad);
  best.resize(best.size() - static_cast<std::size_t>(bad) - 2);
  std::sort(best.begin(), best.end());
  return best;
}

std::vector<int> ChooseBulyan(const Distances& distances, int bad) {
  std::vector<int> left = AllOf(distances), chosen;
  for (int more = distances.ranks - 2 * bad; more > 0; --more) {
    const int best = ByScore(distances, left, bad).front();
    chosen.push_back(best);
    left.erase(std::find(left.begin(), left.end(), best));
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// ---- Values
// -------------------------------------------------------------------------------

HVD_SPARSE_CLONES
void SortPair(float* low, float* high, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float a = low[i], b = high[i];
    low[i] = a < b ? a : b;
    high[i] = a < b ? b : a;
  }
}

/// Sorts each column of a block: Batcher's merge exchange, algorithm M of Knuth's "The Art of
/// Computer Programming", section 5.2.2, which compares whole rows.
void SortColumns(float* block, int rows, std::int64_t width) {
  int top = 1;
  while (2 * top < rows) top *= 2;
  for (int p = top; p > 0; p /= 2) {
    int q = top, r = 0, distance = p;
    for (;;) {
      for (int i = 0; i + distance < rows; ++i) {
        if ((i & p) != r) continue;
        SortPair(block + i * kSortedTogether, block + (i + distance) * kSortedTogether, width);
      }
      if (q == p) break;
      distance = q - p;
      q /= 2;
      r = p;
    }
  }
}

HVD_SPARSE_CLONES
void AddTo(float* sum, const float* row, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) sum[i] += row[i];
}

HVD_SPARSE_CLONES
void Multiply(float* values, float factor, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) values[i] *= factor;
}

/// Averages the sorted rows [begin, end).
void MeanOfRows(const float* sorted, int begin, int end, std::int64_t width, float* average,
                float* least, float* largest) {
  const auto row = [&](int i) { return sorted + i * kSortedTogether; };
  std::copy_n(row(begin), width, average);
  for (int i = begin + 1; i < end; ++i) AddTo(average, row(i), width);
  Multiply(average, 1.0f / static_cast<float>(end - begin), width);
  std::copy_n(row(begin), width, least);
  std::copy_n(row(end - 1), width, largest);
}

void Median(const float* sorted, int rows, int /*bad*/, std::int64_t width, float* average,
            float* least, float* largest) {
  MeanOfRows(sorted, (rows - 1) / 2, rows / 2 + 1, width, average, least, largest);
}

void TrimmedMean(const float* sorted, int rows, int bad, std::int64_t width, float* average,
                 float* least, float* largest) {
  MeanOfRows(sorted, bad, rows - bad, width, average, least, largest);
}

/// The average of neighbouring sorted rows, and its limits.
struct Window {
  float mean[kSortedTogether], least[kSortedTogether], largest[kSortedTogether];
};

/// Replaces a window by the next one, where the row that this adds is nearer to the median than the
/// one, `dropped`, that it lacks.
HVD_SPARSE_CLONES
void KeepNearest(const Window& next, const float* dropped, const float* median, std::int64_t width,
                 float* mean, float* least, float* largest) {
  for (std::int64_t i = 0; i < width; ++i) {
    const bool is_nearer = next.largest[i] - median[i] < median[i] - dropped[i];
    mean[i] = is_nearer ? next.mean[i] : mean[i];
    least[i] = is_nearer ? next.least[i] : least[i];
    largest[i] = is_nearer ? next.largest[i] : largest[i];
  }
}

/// Averages all but 2 `bad` values, those nearest to the median: neighbours, as the rows are
/// sorted.
void MeanAroundMedian(const float* sorted, int rows, int bad, std::int64_t width, float* average,
                      float* least, float* largest) {
  Window middle, next;
  Median(sorted, rows, bad, width, middle.mean, middle.least, middle.largest);
  const int count = rows - 2 * bad;
  MeanOfRows(sorted, 0, count, width, average, least, largest);
  for (int begin = 1; begin + count <= rows; ++begin) {
    MeanOfRows(sorted, begin, begin + count, width, next.mean, next.least, next.largest);
    KeepNearest(next, sorted + (begin - 1) * kSortedTogether, middle.mean, width, average, least,
                largest);
  }
}

/// Returns the number of values outside [least, largest].
HVD_SPARSE_CLONES
std::int64_t CountOutside(const float* row, const float* least, const float* largest,
                          std::int64_t width) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    count += static_cast<std::int32_t>(row[i] < least[i]) |
             static_cast<std::int32_t>(row[i] > largest[i]);
  }
  return count;
}

}  // namespace

float Distances::Between(int a, int b) const {
  if (a == b) return 0;
  const int larger = std::max(a, b);
  return values[larger * (larger - 1) / 2 + std::min(a, b)];
}

const std::vector<AggregationRule>& AllRules() {
  static const std::vector<AggregationRule> all = {
      // name, factor, more, choose, average
      {"bulyan", 4, 3, ChooseBulyan, MeanAroundMedian},
      {"krum", 2, 3, ChooseKrum, nullptr},
      {"median", 2, 1, nullptr, Median},
      {"multi_krum", 2, 3, ChooseMultiKrum, nullptr},
      {"trimmed_mean", 2, 1, nullptr, TrimmedMean},
  };
  return all;
}

void AverageRows(const AggregationRule& rule, int bad, Rows rows, Span<float> average,
                 Span<std::int64_t> left_out) {
  const auto count = static_cast<int>(rows.size);
  std::vector<float> block(static_cast<std::size_t>(count * kSortedTogether));
  float least[kSortedTogether], largest[kSortedTogether];
  for (std::int64_t begin = 0; begin < average.size; begin += kSortedTogether) {
    const std::int64_t width = std::min(kSortedTogether, average.size - begin);
    for (int r = 0; r < count; ++r) {
      std::copy_n(rows[r] + begin, width, block.data() + r * kSortedTogether);
    }
    float* const result = average.data + begin;
    if (rule.average == nullptr) {
      MeanOfRows(block.data(), 0, count, width, result, least, largest);
      continue;
    }
    SortColumns(block.data(), count, width);
    rule.average(block.data(), count, bad, width, result, least, largest);
    for (int r = 0; r < count; ++r) {
      left_out[r] += CountOutside(rows[r] + begin, least, largest, width);
    }
  }
}

/// Adds up squared differences, always in 16 lanes, so that every instruction set gives the same
/// bits.
HVD_SPARSE_CLONES
double SquaredDistance(const float* a, const float* b, std::int64_t numel) {
  double lanes[16] = {}, total = 0;
  std::int64_t i = 0;
  for (; i + 16 <= numel; i += 16) {
    for (int lane = 0; lane < 16; ++lane) {
      const double difference = a[i + lane] - b[i + lane];
      lanes[lane] += difference * difference;
    }
  }
  for (; i < numel; ++i) {
    const double difference = a[i] - b[i];
    total += difference * difference;
  }
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace hvd_sparse

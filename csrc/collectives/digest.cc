#include "csrc/collectives/digest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "csrc/base/error.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/radix.h"

namespace hvd_sparse {
namespace {

constexpr std::uint32_t kMagnitudeMask = 0x7fffffffu;

/// Runs one pass of a radix sort, `from` to `to`, by the digit above `shift` bits.
template <std::size_t kDigits>
void SortBy(int shift, const std::array<std::uint32_t, kDigits>& counts, const std::uint32_t* from,
            std::int64_t size, std::uint32_t* to) {
  std::array<std::uint32_t, kDigits> next;
  std::uint32_t begin = 0;
  for (std::size_t digit = 0; digit < kDigits; ++digit) {
    next[digit] = begin;
    begin += counts[digit];
  }
  for (std::int64_t i = 0; i < size; ++i) {
    to[next[(from[i] >> shift) & (kDigits - 1)]++] = from[i];
  }
}

/// Sorts the magnitudes in `scratch` into its `sorted`, ascending.
void Sort(DigestScratch* scratch) {
  constexpr std::int64_t kFewEntries = 512;  // too few to be worth clearing histograms for
  std::vector<std::uint32_t>& magnitudes = scratch->magnitudes;
  std::vector<std::uint32_t>& sorted = scratch->sorted;
  const auto size = static_cast<std::int64_t>(magnitudes.size());
  sorted.resize(magnitudes.size());
  if (size <= kFewEntries) {
    std::copy(magnitudes.begin(), magnitudes.end(), sorted.begin());
    std::sort(sorted.begin(), sorted.end());
    return;
  }
  constexpr int kMiddleShift = cpu::kLowerBits, kUpperShift = 2 * cpu::kLowerBits;
  std::array<std::uint32_t, 1 << cpu::kLowerBits> lower{}, middle{};
  std::array<std::uint32_t, 1 << cpu::kUpperBits> upper{};
  for (const std::uint32_t magnitude : magnitudes) {
    ++lower[magnitude & cpu::kLowerMask];
    ++middle[(magnitude >> kMiddleShift) & cpu::kLowerMask];
    ++upper[magnitude >> kUpperShift];
  }
  SortBy(0, lower, magnitudes.data(), size, sorted.data());
  SortBy(kMiddleShift, middle, sorted.data(), size, magnitudes.data());
  SortBy(kUpperShift, upper, magnitudes.data(), size, sorted.data());
}

/// One rank's digest, as the others see it.
struct Digest {
  const std::vector<std::int64_t>& positions;
  const std::uint32_t* magnitudes;  // descending
  std::int64_t count;

  std::int64_t Clamped(std::int64_t i) const {
    return std::min(positions[static_cast<std::size_t>(i)], count);
  }

  /// Return how many of the magnitudes reach `bound`, and how many are above it.
  std::int64_t Reaching(std::uint32_t bound) const {
    return std::partition_point(magnitudes, magnitudes + positions.size(),
                                [=](std::uint32_t m) { return m >= bound; }) -
           magnitudes;
  }
  std::int64_t Above(std::uint32_t bound) const {
    return std::partition_point(magnitudes, magnitudes + positions.size(),
                                [=](std::uint32_t m) { return m > bound; }) -
           magnitudes;
  }

  std::int64_t EntriesBefore(std::int64_t i) const { return i == 0 ? 0 : Clamped(i - 1); }

  /// Returns the most entries that can come before the i-th magnitude.
  std::int64_t MostBefore(std::int64_t i) const {
    if (i == static_cast<std::int64_t>(positions.size())) return count;
    return std::max<std::int64_t>(Clamped(i) - 1, 0);
  }
};

Digest DigestOf(int rank, Span<const std::uint32_t> digests,
                const std::vector<std::int64_t>& positions) {
  const std::uint32_t* const begin = digests.data + rank * DigestLength(positions);
  return {positions, begin + 1, begin[0]};
}

}  // namespace

std::vector<std::int64_t> DigestPositions(std::int64_t k, int size) {
  const std::int64_t share = k / size, step = std::max<std::int64_t>(1, share / 16);
  std::vector<std::int64_t> positions;
  for (std::int64_t position = step; position < k;) {
    positions.push_back(position);
    position += position < share ? step : std::max<std::int64_t>(1, position / 8);
  }
  if (k > 0) positions.push_back(k);
  return positions;
}

void WriteDigest(const SparseBlock& block, const std::vector<std::int64_t>& positions,
                 DigestScratch* scratch, std::uint32_t* digest) {
  const std::int64_t count = block.count();
  scratch->magnitudes.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    scratch->magnitudes[static_cast<std::size_t>(i)] =
        FloatBits(block.values()[i]) & kMagnitudeMask;
  }
  Sort(scratch);
  *digest++ = static_cast<std::uint32_t>(count);
  for (const std::int64_t position : positions) {
    *digest++ = count == 0
                    ? 0
                    : scratch->sorted[static_cast<std::size_t>(count - std::min(position, count))];
  }
}

std::string ProblemOfDigest(Span<const std::uint32_t> digest, std::int64_t numel) {
  if (digest[0] > numel) {
    return Concat("a claim of ", digest[0], " entries in a bucket of ", numel);
  }
  if (std::any_of(digest.begin() + 1, digest.end(), [](auto m) { return m > kMagnitudeMask; }) ||
      !std::is_sorted(digest.begin() + 1, digest.end(), std::greater<>())) {
    return "a digest whose magnitudes do not descend";
  }
  return "";
}

Bound FindBound(Span<const std::uint32_t> digests, const std::vector<std::int64_t>& positions,
                int size, std::int64_t k) {
  const auto promised = [&](int rank, std::uint32_t bound) {
    const Digest digest = DigestOf(rank, digests, positions);
    return digest.EntriesBefore(digest.Reaching(bound));
  };
  std::uint32_t low = 0, high = kMagnitudeMask + 1;  // low holds, or there are fewer than k entries
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    std::int64_t entries = 0;
    for (int rank = 0; rank < size; ++rank) entries += promised(rank, middle);
    (entries >= k ? low : high) = middle;
  }

  Bound found;
  found.magnitude = low;
  std::int64_t before = 0;
  for (int rank = 0; rank < size; ++rank) {
    const Digest digest = DigestOf(rank, digests, positions);
    const std::int64_t reaching = digest.MostBefore(digest.Reaching(low));
    const std::int64_t above = digest.MostBefore(digest.Above(low));
    Share& share = found.shares.emplace_back();
    share.at_least = promised(rank, low);
    share.at_most =
        std::min(k, std::max(above, std::min(reaching, std::max<std::int64_t>(0, k - before))));
    before += share.at_least;
  }
  return found;
}

std::int64_t KeptOf(int rank, const Bound& bound, std::int64_t k, const DigestScratch& scratch) {
  const auto begin = scratch.sorted.begin(), end = scratch.sorted.end();
  const std::int64_t reaching = end - std::lower_bound(begin, end, bound.magnitude);
  const std::int64_t above = end - std::upper_bound(begin, end, bound.magnitude);
  std::int64_t before = 0;
  for (int lower = 0; lower < rank; ++lower) {
    before += bound.shares[static_cast<std::size_t>(lower)].at_least;
  }
  return std::min(k, std::max(above, std::min(reaching, std::max<std::int64_t>(0, k - before))));
}

}  // namespace hvd_sparse

/// Digests: the bound that all ranks derive keeps the k largest entries, and few more.

#include "csrc/collectives/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <tuple>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

/// The values on each rank; the entries of a lower rank have lower indices.
using Ranks = std::vector<std::vector<float>>;

struct Found {
  std::vector<std::int64_t> kept;
  Bound bound;
};

Found KeepOn(const Ranks& ranks, std::int64_t k) {
  const auto size = static_cast<int>(ranks.size());
  const std::vector<std::int64_t> positions = DigestPositions(k, size);
  const auto length = static_cast<std::size_t>(DigestLength(positions));
  std::vector<std::uint32_t> digests(length * ranks.size());
  std::vector<DigestScratch> scratch(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Entries entries;
    for (std::size_t i = 0; i < ranks[rank].size(); ++i) {
      entries.push_back({static_cast<Index>(i), ranks[rank][i]});
    }
    WriteDigest(MakeBlock(entries), positions, &scratch[rank], &digests[rank * length]);
  }
  Found found;
  found.bound = FindBound(digests, positions, size, k);
  for (int rank = 0; rank < size; ++rank) {
    found.kept.push_back(KeptOf(rank, found.bound, k, scratch[static_cast<std::size_t>(rank)]));
  }
  return found;
}

/// Returns how many of the k largest entries overall lie on each rank; ties go to lower ranks.
std::vector<std::int64_t> NeededOn(const Ranks& ranks, std::int64_t k) {
  std::vector<std::tuple<std::uint32_t, std::size_t>> all;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const float value : ranks[rank]) all.emplace_back(~(FloatBits(value) << 1), rank);
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> needed(ranks.size());
  for (std::size_t i = 0; i < all.size() && i < static_cast<std::size_t>(k); ++i) {
    ++needed[std::get<1>(all[i])];
  }
  return needed;
}

/// Expects that no needed entry is dropped, and that shares are upper bounds. Returns the total
/// kept.
std::int64_t ExpectSafe(const Ranks& ranks, std::int64_t k) {
  const Found found = KeepOn(ranks, k);
  const std::vector<std::int64_t> needed = NeededOn(ranks, k);
  std::int64_t total = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_GE(found.kept[rank], needed[rank]) << "rank " << rank << ", k = " << k;
    EXPECT_LE(found.kept[rank], found.bound.shares[rank].at_most) << "rank " << rank;
    EXPECT_LE(found.kept[rank], static_cast<std::int64_t>(ranks[rank].size()));
    total += found.kept[rank];
  }
  return total;
}

TEST(Digest, PlacesAscendToK) {
  for (std::int64_t k : {1, 2, 15, 16, 17, 100, 25600, 2560000}) {
    for (int size : {1, 2, 7, 64, 1000}) {
      const std::vector<std::int64_t> positions = DigestPositions(k, size);
      ASSERT_GE(positions.front(), 1);
      ASSERT_EQ(positions.back(), k);
      ASSERT_TRUE(std::is_sorted(positions.begin(), positions.end(), std::less_equal<>()));
      ASSERT_LE(positions.size(), 120u);
    }
  }
  EXPECT_TRUE(DigestPositions(0, 4).empty());
}

TEST(Digest, KeepsTheLargestOfAllRanksAndAboutASixteenthMore) {
  std::mt19937 random(1);
  std::normal_distribution<float> gaussian;
  for (int size : {2, 3, 8, 32}) {
    for (std::int64_t k : {1, 5, 64, 1000, 20000}) {
      Ranks ranks(static_cast<std::size_t>(size));
      for (auto& values : ranks) {
        for (std::int64_t i = 0; i < 2 * k / size + 3; ++i) values.push_back(gaussian(random));
      }
      EXPECT_LE(ExpectSafe(ranks, k), k + k / 16 + k / 50 + size) << size << " ranks, k = " << k;
    }
  }
}

TEST(Digest, KeepsFewMoreThanKWhereSharesAreUneven) {
  std::mt19937 random(2);
  std::normal_distribution<float> gaussian;
  for (int size : {2, 5, 16}) {
    constexpr std::int64_t kK = 8000;
    Ranks ranks(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      for (int i = 0; i < 9000; ++i) {
        ranks[static_cast<std::size_t>(rank)].push_back(
            std::ldexp(gaussian(random), rank == 1 ? 8 : -rank));
      }
    }
    EXPECT_LE(ExpectSafe(ranks, kK), kK + kK / 8 + size);
  }
}

TEST(Digest, IsSafeForAwkwardValuesAndAnyCounts) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Ranks ranks(1 + random() % 6);
    for (auto& values : ranks) values = Awkward(random() % 40, static_cast<int>(random()));
    if (round % 3 == 0) ranks[0].push_back(kInf);
    if (round % 5 == 0) ranks[0].push_back(kNan);
    ExpectSafe(ranks, 1 + static_cast<std::int64_t>(random() % 60));
  }
}

TEST(Digest, OfEqualMagnitudesKeepsExactlyK) {
  for (float value : {2.0f, -0.0f}) {
    const Ranks ranks = {std::vector<float>(700, value),
                         {},
                         std::vector<float>(900, -value),
                         std::vector<float>(800, value)};
    EXPECT_EQ(ExpectSafe(ranks, 700), 700);
    EXPECT_EQ(ExpectSafe(ranks, 10000), 2400);
  }
}

TEST(Digest, KeepsEverythingWhereThereAreFewerThanKEntries) {
  const Ranks ranks = {Awkward(5, 1), {}, Awkward(90, 2)};
  EXPECT_EQ(ExpectSafe(ranks, 96), 95);
  EXPECT_EQ(ExpectSafe(ranks, 95), 95);
}

TEST(Digest, ThatCannotBeOneIsFoundOut) {
  const auto problem = [](const std::vector<std::uint32_t>& digest) {
    return ProblemOfDigest(digest, 100);
  };
  EXPECT_EQ(problem({100, 9, 9, 4}), "");
  EXPECT_EQ(problem({0}), "");
  EXPECT_EQ(problem({101, 9}), "a claim of 101 entries in a bucket of 100");
  EXPECT_EQ(problem({5, 9, 4, 9}), "a digest whose magnitudes do not descend");
  EXPECT_EQ(problem({5, 0x80000000u}), "a digest whose magnitudes do not descend");
}

}  // namespace
}  // namespace hvd_sparse

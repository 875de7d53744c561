/// Packed positions: they round-trip, have the promised size, and malformed codes are refused.

#include "csrc/wire/index_coding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "csrc/base/sparse_block.h"

namespace hvd_sparse {
namespace {

using Positions = std::vector<Index>;

IndexShape ShapeOf(const Positions& positions) {
  return {static_cast<std::int64_t>(positions.size()), positions.front(), positions.back()};
}

/// Draws `count` of the positions below `numel`.
Positions Draw(std::int64_t count, std::int64_t numel, std::mt19937* random) {
  Positions positions;
  if (count > numel / 8) {  // each is taken with the probability still needed
    for (std::int64_t i = 0; i < numel; ++i) {
      const std::int64_t wanted = count - static_cast<std::int64_t>(positions.size());
      if (static_cast<std::int64_t>((*random)() % (numel - i)) < wanted) {
        positions.push_back(static_cast<Index>(i));
      }
    }
    return positions;
  }
  std::set<Index> drawn;
  while (static_cast<std::int64_t>(drawn.size()) < count) {
    drawn.insert(static_cast<Index>((*random)() % numel));
  }
  positions.assign(drawn.begin(), drawn.end());
  return positions;
}

/// Returns the code in memory of exactly its size, so that a sanitizer finds overruns.
std::vector<std::uint8_t> Encoded(const Positions& positions) {
  std::vector<std::uint8_t> code(static_cast<std::size_t>(ShapeOf(positions).Bytes()), 0xa5);
  EncodeIndices(positions.data(), ShapeOf(positions), code.data());
  return code;
}

void ExpectComesBack(const Positions& positions) {
  const IndexShape shape = ShapeOf(positions);
  std::vector<std::uint8_t> code = Encoded(positions);
  Positions decoded(positions.size(), -1);
  ASSERT_TRUE(DecodeIndices(code.data(), shape.Bytes(), shape, decoded.data()));
  ASSERT_EQ(decoded, positions);
  code.resize(code.size() + 64);  // bytes after the code change nothing
  decoded.assign(positions.size(), -1);
  ASSERT_TRUE(DecodeIndices(code.data(), shape.Bytes() + 64, shape, decoded.data()));
  ASSERT_EQ(decoded, positions);

  const double density = static_cast<double>(positions.size()) / static_cast<double>(shape.Span());
  const double bits = static_cast<double>(positions.size()) * (std::log2(1 / density) + 2);
  ASSERT_LE(shape.Bytes(), bits / 8 + 16);  // both parts are padded to 8 bytes
}

TEST(IndexCoding, RandomPositionsOfAnyDensityComeBack) {
  std::mt19937 random(1);
  for (const std::int64_t numel : {1, 2, 7, 63, 64, 65, 1000, 100000}) {
    for (const double density : {0.0001, 0.001, 0.01, 0.1, 0.3, 0.49, 0.5, 0.51, 0.9, 1.0}) {
      const auto count = static_cast<std::int64_t>(std::ceil(density * static_cast<double>(numel)));
      for (int round = 0; round < 3; ++round) ExpectComesBack(Draw(count, numel, &random));
    }
  }
}

TEST(IndexCoding, FewPositionsAnywhereComeBack) {
  constexpr Index kLast = static_cast<Index>(kMaxBucketNumel - 1);  // 2^31 - 2
  for (const Positions& positions : std::vector<Positions>{
           {0}, {1}, {kLast}, {0, 1}, {0, kLast}, {kLast - 1, kLast}, {0, 1, kLast}, {5, 6, 7}}) {
    ExpectComesBack(positions);
  }
  std::mt19937 random(2);
  for (const std::int64_t count : {2, 3, 15, 16, 17, 63, 64, 65, 66, 127, 128, 1000, 60000}) {
    Positions positions = Draw(count, kMaxBucketNumel, &random);
    ExpectComesBack(positions);
    positions.front() = 0;
    positions.back() = kLast;
    ExpectComesBack(positions);
  }
}

TEST(IndexCoding, EveryWidthOfTheLowBitsComesBack) {
  std::mt19937 random(3);
  for (int bits = 0; bits < 31; ++bits) {
    for (const std::int64_t count : {1, 5, 16, 100, 500}) {
      const std::int64_t span = std::min(count << bits, kMaxBucketNumel);
      Positions positions = Draw(std::min(count, span), span, &random);
      positions.front() = 0;
      if (positions.size() > 1) positions.back() = static_cast<Index>(span - 1);
      ExpectComesBack(positions);
    }
  }
}

TEST(IndexCoding, ClustersComeBack) {
  Positions positions;
  for (Index start = 0; start < 2000000000; start += 99999989) {
    for (Index i = 0; i < 700; ++i) positions.push_back(start + i);
  }
  ExpectComesBack(positions);
  Positions dense(100000);
  for (std::size_t i = 0; i < dense.size(); ++i) dense[i] = 1000000 + static_cast<Index>(i);
  ExpectComesBack(dense);
  EXPECT_LE(ShapeOf(dense).Bytes(), 2 * 100000 / 8 + 16);
}

TEST(IndexCoding, SurvivedBitsAreLeftOut) {
  std::mt19937 random(4);
  const Positions positions = Draw(300, 70000, &random);
  Positions marked = positions;
  for (Index& index : marked) index = Marked(index, random() % 2 == 0);
  std::vector<std::uint8_t> code(static_cast<std::size_t>(ShapeOf(positions).Bytes()));
  EncodeIndices(marked.data(), ShapeOf(positions), code.data());
  EXPECT_EQ(code, Encoded(positions));
}

TEST(IndexCoding, ACorruptCodeIsRefusedOrHoldsPositionsInOrder) {
  std::mt19937 random(5);
  int refused = 0, rounds = 0;
  for (const std::int64_t numel : {40, 1000, 100000, 2000000000}) {
    for (const std::int64_t count : {2, 30, 200}) {
      if (count > numel) continue;
      const Positions positions = Draw(count, numel, &random);
      for (int round = 0; round < 300; ++round, ++rounds) {
        std::vector<std::uint8_t> code = Encoded(positions);
        IndexShape shape = ShapeOf(positions);
        const std::size_t flips = 1 + random() % 9;
        for (std::size_t i = 0; i < flips; ++i) {
          code[random() % code.size()] ^= static_cast<std::uint8_t>(1 << random() % 8);
        }
        if (round % 3 == 0) std::fill(code.begin(), code.end(), random() % 2 == 0 ? 0xff : 0x00);
        if (round % 3 == 1) {
          for (std::uint8_t& byte : code) byte = static_cast<std::uint8_t>(random());
        }
        // The room is exactly the number of positions.
        Positions decoded(static_cast<std::size_t>(shape.count));
        if (!DecodeIndices(code.data(), shape.Bytes(), shape, decoded.data())) {
          ++refused;
          continue;
        }
        ASSERT_EQ(decoded.front(), shape.first);
        ASSERT_EQ(decoded.back(), shape.last);
        ASSERT_TRUE(std::is_sorted(decoded.begin(), decoded.end(), std::less_equal<>()));
      }
    }
  }
  EXPECT_GT(refused, rounds / 2);
}

TEST(IndexCoding, ShapesWithoutRoomAreRefused) {
  Index decoded[8];
  const std::vector<std::uint8_t> code(64, 0xff);
  for (const IndexShape& shape : std::vector<IndexShape>{{3, 5, 6}, {1, 6, 5}, {2, -9, 9}}) {
    EXPECT_FALSE(shape.IsPossible());
    EXPECT_FALSE(DecodeIndices(code.data(), 64, shape, decoded));
  }
}

TEST(IndexCoding, AscendTellsOrderAndEnd) {
  EXPECT_TRUE(Ascend(nullptr, 0, 0));
  const Positions marked = {0, Marked(3, true), 4, Marked(9, true)};
  EXPECT_TRUE(Ascend(marked.data(), 4, 10));
  EXPECT_FALSE(Ascend(marked.data(), 4, 9));
  for (std::size_t wrong = 1; wrong < 9000; wrong += 977) {
    Positions positions(9000);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<Index>(2 * i);
    EXPECT_TRUE(Ascend(positions.data(), 9000, 18000));
    positions[wrong] = positions[wrong - 1];
    EXPECT_FALSE(Ascend(positions.data(), 9000, 18000)) << wrong;
  }
}

}  // namespace
}  // namespace hvd_sparse

/// However segments and gradients overlap, each entry lies in exactly one tile of each kind.

#include "csrc/cuda/step/bucket_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "csrc/sparsifiers/samples.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"
#include "tests/csrc/cuda/bucket_specs.h"

namespace hvd_sparse::cuda {
namespace {

/// Cuts `numel` at random places; some parts are empty.
std::vector<std::int64_t> RandomParts(std::int64_t numel, std::mt19937* random) {
  std::vector<std::int64_t> parts;
  while (numel > 0) {
    const std::int64_t most = (*random)() % 3 == 0 ? 20 : 3 * kTileEntries;
    parts.push_back(std::min<std::int64_t>(numel, static_cast<std::int64_t>((*random)()) % most));
    numel -= parts.back();
  }
  return parts;
}

void ExpectTiles(const BucketSpec& spec) {
  const BucketLayout layout(spec);
  std::int64_t begin = 0, candidates = 0, capacity = 0;
  std::size_t tile = 0, segment = 0, chunk = 0;
  for (std::size_t number = 0; number < spec.segment_numels.size(); ++number) {
    const std::int64_t numel = spec.segment_numels[number], max_k = spec.max_ks[number];
    if (numel == 0) continue;
    const SegmentPlace& place = layout.segments[segment];
    EXPECT_EQ(place.number, number);
    EXPECT_EQ(place.first_tile, tile);
    EXPECT_EQ(place.candidates, candidates);
    EXPECT_EQ(layout.segment_numels[segment], numel);
    for (const std::int64_t end = begin + numel; begin < end; ++tile) {
      const Tile& own = layout.tiles[tile];
      ASSERT_EQ(own.begin, begin);
      EXPECT_EQ(own.segment, segment);
      ASSERT_GE(own.size, 1);
      EXPECT_LE(own.size, kTileEntries);
      EXPECT_EQ(layout.gradient_begins[own.gradient] + own.in_gradient, begin);
      begin += own.size;
      EXPECT_LE(begin, layout.gradient_begins[own.gradient + 1]);
      const bool is_full = own.size == kTileEntries;
      EXPECT_TRUE(is_full || begin == end || begin == layout.gradient_begins[own.gradient + 1]);
    }
    EXPECT_EQ(place.end_tile, tile);
    const std::int64_t room = RoomForCandidates(max_k, numel);
    for (std::int64_t first = 0; first < room; first += kChunkEntries, ++chunk) {
      EXPECT_EQ(layout.chunks[chunk].segment, segment);
      EXPECT_EQ(layout.chunks[chunk].begin, first);
    }
    candidates += room;
    capacity += MostFor(max_k, numel);
    ++segment;
  }
  EXPECT_EQ(begin, spec.Numel());
  EXPECT_EQ(layout.tiles.size(), tile);
  EXPECT_EQ(layout.segments.size(), segment);
  EXPECT_EQ(layout.chunks.size(), chunk);
  EXPECT_EQ(layout.candidates, candidates);
  EXPECT_EQ(layout.capacity, capacity);
}

TEST(BucketLayout, EveryEntryLiesInOneTileOfOneSegmentAndOneGradient) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t numel = 1 + static_cast<std::int64_t>(random() % 60000);
    std::vector<SegmentPlan> segments;
    const std::vector<std::int64_t> gradient_numels = RandomParts(numel, &random);
    for (const std::int64_t part : RandomParts(numel, &random)) {
      segments.push_back({part, part == 0 ? 0 : 1 + part / 7});
    }
    ExpectTiles(SpecOf(segments, gradient_numels));
  }
}

}  // namespace
}  // namespace hvd_sparse::cuda

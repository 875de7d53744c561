/// Running counts over tiles, with many blocks at a time in varying orders; needs no GPU.

#include "csrc/cuda/base/look_back.cuh"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace hvd_sparse::cuda {
namespace {

/// Expects the right counts from one-warp blocks that each look back over tiles, which they take in
/// the order in which they start, after a pause of some turns.
void ExpectCounts(unsigned tiles, unsigned resident) {
  SCOPED_TRACE(testing::Message() << tiles << " tiles, " << resident << " blocks at a time");
  std::mt19937 random(tiles + resident);
  std::vector<Counts> own(tiles), before(tiles);
  std::vector<unsigned> pauses(tiles);
  for (unsigned tile = 0; tile < tiles; ++tile) {
    const auto draw = [&](unsigned limit) { return static_cast<unsigned>(random() % limit); };
    own[tile] = {draw(3) == 0 ? 0 : draw(4097), draw(4097)};
    pauses[tile] = draw(30);
  }
  std::vector<TileWord> words(tiles);
  unsigned begun = 0;
  const emulation::Resident several(resident);
  emulation::Launch(tiles, kWarp, nullptr, [&] {
    const int lane = emulation::OwnLane();
    const unsigned tile = __shfl_sync(kAllLanes, lane == 0 ? atomicAdd(&begun, 1u) : 0u, 0);
    for (unsigned pause = 0; pause < pauses[tile]; ++pause) emulation::Yield();
    const Counts counts = LookBack(words.data(), tile, own[tile]);
    if (lane == static_cast<int>(tile % kWarp)) before[tile] = counts;
  });
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  Counts sum = {0, 0};
  for (unsigned tile = 0; tile < tiles; ++tile) {
    ASSERT_EQ(before[tile].above, sum.above) << "tile " << tile;
    ASSERT_EQ(before[tile].ties, sum.ties) << "tile " << tile;
    sum = sum + own[tile];
  }
}

TEST(LookBack, CountsAllTilesBeforeWhateverTheOrder) {
  for (const unsigned tiles : {1u, 2u, 31u, 32u, 33u, 64u, 65u, 100u, 200u}) {
    for (const unsigned resident : {1u, 2u, 7u, 40u, 100u, 200u}) ExpectCounts(tiles, resident);
  }
}

TEST(LookBack, AWordHoldsTheLargestCounts) {
  for (const unsigned above : {0u, 1u, 0x7fffffffu}) {
    for (const unsigned ties : {0u, 1u, 0x7fffffffu}) {
      for (const TileStatus status : {TileStatus::kOwn, TileStatus::kUpToEnd}) {
        const TileWord word = Pack(status, {above, ties});
        EXPECT_EQ(StatusOf(word), status);
        EXPECT_EQ(CountsOf(word).above, above);
        EXPECT_EQ(CountsOf(word).ties, ties);
      }
    }
  }
}

}  // namespace
}  // namespace hvd_sparse::cuda

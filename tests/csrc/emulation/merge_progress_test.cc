/// Tiles of a merge wait for those before them: whatever counts a block reads, it publishes the
/// counts of its tile.

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/launches.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

/// Merges blocks with room for 9 tiles of 2,048 steps; returns the number of entries up to the end
/// of each tile.
std::vector<unsigned> UpToEachTile(std::uint32_t own_count, std::uint32_t their_count) {
  constexpr std::int64_t kRoom = 9216, kTiles = 9;
  OwnedBlock own(kRoom), theirs(kRoom);
  const OwnedBlock out(2 * kRoom);
  std::vector<Index> indices(kRoom);
  std::iota(indices.begin(), indices.end(), 0);
  const std::vector<float> values(kRoom, 1.0f);
  for (const auto& [block, count] : {std::pair(&own, own_count), std::pair(&theirs, their_count)}) {
    cuda::DeviceBlockHeader header;
    header.count = count;
    block->SetHeader(header);
    CopyBytes(block->block().indices, indices.data(), kRoom * sizeof(Index));
    CopyBytes(block->block().values, values.data(), kRoom * sizeof(float));
  }
  const ZeroedScratch<cuda::MergeScratch> scratch(2 * kRoom);
  cuda::LaunchMerge(own.block(), theirs.block(), out.block(), scratch.get(), nullptr, nullptr);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  std::vector<unsigned> up_to_end;
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    const cuda::TileWord word = scratch.get().words[tile];
    EXPECT_EQ(cuda::StatusOf(word), cuda::TileStatus::kUpToEnd) << "tile " << tile;
    up_to_end.push_back(cuda::CountsOf(word).above);
  }
  return up_to_end;
}

TEST(MergeProgress, EveryTilePublishesWhetherItHasStepsOrNot) {
  EXPECT_EQ(UpToEachTile(0, 0), std::vector<unsigned>(9));
  EXPECT_EQ(UpToEachTile(2048, 1), std::vector<unsigned>({2047, 2048, 0, 0, 0, 0, 0, 0, 0}));
  UpToEachTile(9216, 9216);
}

}  // namespace
}  // namespace hvd_sparse

/// Merging on a device gives the same bits as merging on the CPU.

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "csrc/cuda/kernels/launches.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

using cuda::DeviceBlockHeader;

/// Returns entries at about a share of the positions below `numel`, some with the survived bit.
Entries Some(std::int64_t numel, double share, int seed) {
  std::mt19937 random(seed);
  const std::vector<float> values = Awkward(numel, seed);
  Entries entries;
  for (std::int64_t i = 0; i < numel; ++i) {
    if (std::uniform_real_distribution<>()(random) >= share) continue;
    entries.push_back({Marked(static_cast<Index>(i), random() % 2 == 0), values[i]});
  }
  return entries;
}

BlockOnCpu MergedOnDevice(const OwnedBlock& own, const OwnedBlock& theirs) {
  const std::int64_t both = own.block().capacity + theirs.block().capacity;
  const OwnedBlock out(both);
  const ZeroedScratch<cuda::MergeScratch> scratch(both);
  cuda::LaunchMerge(own.block(), theirs.block(), out.block(), scratch.get(), nullptr, nullptr);
  return BlockOnCpu(out.block());
}

void ExpectMergesAlike(const Entries& own, const Entries& theirs) {
  SparseBlock expected;
  CpuKernels().Merge(MakeBlock(own), MakeBlock(theirs), &expected);
  const BlockOnCpu merged = MergedOnDevice(OwnedBlock(own), OwnedBlock(theirs));
  EXPECT_EQ(merged.entries, EntriesOf(expected));
  EXPECT_EQ(merged.header.flags, 0u);
}

using CudaMerge = CudaTest;

TEST_F(CudaMerge, EqualsTheCpu) {
  // Sizes below, at and around the 2,048 steps of a tile; all, half or hardly any indices in
  // common.
  for (const std::int64_t numel : {1, 7, 300, 2047, 4097, 9000}) {
    for (const double share : {0.1, 0.5, 1.0}) {
      for (const double other_share : {0.0, 0.02, 0.5, 1.0}) {
        SCOPED_TRACE(testing::Message() << numel << ", " << share << " and " << other_share);
        const Entries a = Some(numel, share, 3), b = Some(numel, other_share, 4);
        ExpectMergesAlike(a, b);
        ExpectMergesAlike(b, a);
      }
    }
  }
}

TEST_F(CudaMerge, ManyTilesEqualTheCpu) {
  ExpectMergesAlike(Some(300000, 0.4, 13), Some(300000, 0.3, 14));
}

TEST_F(CudaMerge, OneBlockMayLieBeforeTheOther) {
  const Entries first = Some(3000, 0.9, 5);
  Entries behind = first;
  for (Entry& entry : behind) entry.index = Marked(Position(entry.index) + 3000, false);
  ExpectMergesAlike(first, behind);
  ExpectMergesAlike(behind, first);
  ExpectMergesAlike({}, {});
}

TEST_F(CudaMerge, PairsMeetAcrossTilesAndThreads) {
  // All indices are in common: every step of an own entry is followed by that of the other one.
  for (std::int64_t before = 0; before < 10; ++before) {
    Entries own, theirs;
    for (Index i = 0; i < before; ++i) own.push_back({i, 1});
    for (Index i = 100; i < 2200; ++i) {
      own.push_back({Marked(i, true), static_cast<float>(i)});
      theirs.push_back({i, 1000});
    }
    ExpectMergesAlike(own, theirs);
  }
}

TEST_F(CudaMerge, HeadersAreJoined) {
  DeviceBlockHeader mine, other;
  mine.bucket = other.bucket = 3;
  mine.verdict = Verdict::BadGradient(5);
  other.verdict = Verdict::BadGradient(1);
  other.flags = cuda::kSumNotFinite;
  const Entries own = {{1, 1}}, theirs = {{2, 1}};
  BlockOnCpu merged = MergedOnDevice(OwnedBlock(own, mine), OwnedBlock(theirs, other));
  EXPECT_EQ(merged.header.count, 2u);
  EXPECT_EQ(merged.header.verdict, Verdict::BadGradient(1));
  EXPECT_EQ(merged.header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));

  other.step = 1;
  merged = MergedOnDevice(OwnedBlock(own, mine), OwnedBlock(theirs, other));
  EXPECT_EQ(merged.header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite | cuda::kDisagree));
}

TEST_F(CudaMerge, SumsThatAreNotFiniteAreNoted) {
  Entries own, theirs;
  for (Index i = 0; i < 3000; ++i) own.push_back({i, kMax});
  theirs = {{2500, kMax / 2}};
  const BlockOnCpu merged = MergedOnDevice(OwnedBlock(own), OwnedBlock(theirs));
  EXPECT_EQ(merged.header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
  EXPECT_TRUE(merged.header.verdict.IsFinite());
}

TEST_F(CudaMerge, MalformedBlocksAreSafeAndNoted) {
  const Entries chaos = {{9, 1}, {2, 1}, {2, 1}, {INT32_MAX, 1}, {0, 1}};
  Entries falling;
  for (Index i = 5000; i > 0; --i) falling.push_back({i, 1});
  const Entries well = Some(5000, 0.5, 6);
  for (const Entries& bad : {chaos, falling}) {
    for (const Entries& other : {well, chaos, falling}) {
      const OwnedBlock a(bad), b(other);
      EXPECT_EQ(MergedOnDevice(a, b).header.flags & cuda::kMalformed, cuda::kMalformed);
      EXPECT_EQ(MergedOnDevice(b, a).header.flags & cuda::kMalformed, cuda::kMalformed);
    }
  }
  OwnedBlock boasting(well);
  DeviceBlockHeader header;
  header.count = 0xffffffffu;
  boasting.SetHeader(header);
  EXPECT_EQ(MergedOnDevice(OwnedBlock(chaos), boasting).header.flags & cuda::kMalformed,
            cuda::kMalformed);
}

TEST_F(CudaMerge, RoomThatIsTooSmallIsRefused) {
  const OwnedBlock a(100), b(100), out(100);
  const ZeroedScratch<cuda::MergeScratch> scratch(1000);
  EXPECT_THROW(
      cuda::LaunchMerge(a.block(), b.block(), out.block(), scratch.get(), nullptr, nullptr), Error);
}

}  // namespace
}  // namespace hvd_sparse

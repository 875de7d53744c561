/// Keeping the largest entries on a device gives the same bits as on the CPU.

#include <gtest/gtest.h>

#include <vector>

#include "csrc/cuda/kernels/launches.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {
namespace {

Entries KeptByCpu(const Entries& entries, std::int64_t k, Span<float> residual = {}) {
  SparseBlock block = MakeBlock(entries);
  block.Finish(CpuKernels().KeepTopK(k, 0, block.count(), &block, residual));
  return EntriesOf(block);
}

BlockOnCpu KeptOnDevice(const OwnedBlock& from, cuda::KeepTopKOptions options) {
  const OwnedBlock to(options.k);
  const ZeroedScratch<cuda::TopKScratch> scratch(from.block().capacity);
  cuda::LaunchKeepTopK(options, from.block(), to.block(), scratch.get(), nullptr);
  return BlockOnCpu(to.block());
}

using CudaKeepTopK = CudaTest;

TEST_F(CudaKeepTopK, EqualsTheCpu) {
  for (const std::int64_t size : {0, 1, 31, 33, 255, 2048, 2049, 5000, 30000}) {
    const Entries entries = EveryThird(size, 7);
    const OwnedBlock from(entries);
    for (const std::int64_t k :
         {std::int64_t{0}, std::int64_t{1}, size / 3, size - 1, size, size + 1}) {
      if (k < 0) continue;
      const BlockOnCpu kept = KeptOnDevice(from, {k, false, false, {}});
      ASSERT_EQ(kept.entries, KeptByCpu(entries, k)) << "of " << size << ", k " << k;
    }
  }
}

TEST_F(CudaKeepTopK, TiesGoToTheLowerIndexWhereverTheyLie) {
  Entries entries;
  for (Index i = 0; i < 5000; ++i) entries.push_back({i, i % 7 == 0 ? 2.0f : -1.0f});
  for (const std::int64_t k : {1, 700, 715, 800, 2048, 4999}) {
    EXPECT_EQ(KeptOnDevice(OwnedBlock(entries), {k, false, false, {}}).entries,
              KeptByCpu(entries, k));
  }
}

TEST_F(CudaKeepTopK, ReturnsWhatItDropsAndTouchesNothingElse) {
  for (const std::int64_t size : {10, 2500}) {
    const Entries entries = EveryThird(size, 8);
    std::vector<float> before = Awkward(3 * size, 9);
    for (const Entry& entry : entries) before[Position(entry.index)] = 0;
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, size / 3, size}) {
      std::vector<float> expected = before;
      KeptByCpu(entries, k, expected);
      DeviceArray<float> residual(before);
      KeptOnDevice(OwnedBlock(entries), {k, false, false, residual.span()});
      EXPECT_TRUE(SameBits(residual.Values(), expected)) << "of " << size << ", k " << k;
    }
  }
}

TEST_F(CudaKeepTopK, MarksAllOfThemIfAsked) {
  const Entries entries = EveryThird(100, 10);
  for (const std::int64_t k : {40, 200}) {
    Entries expected = KeptByCpu(entries, k);
    for (Entry& entry : expected) entry.index = Marked(entry.index, true);
    EXPECT_EQ(KeptOnDevice(OwnedBlock(entries), {k, false, true, {}}).entries, expected);
  }
}

TEST_F(CudaKeepTopK, KeepsNonFiniteSumsWhereTheyAreSeen) {
  const Entries entries = {{0, 1}, {1, kNan}, {2, kInf}, {3, 2}};
  const Entries kept = KeptOnDevice(OwnedBlock(entries), {2, false, false, {}}).entries;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].index, 1);
  EXPECT_EQ(kept[1].index, 2);
}

TEST_F(CudaKeepTopK, TheHeaderStaysButForTheCount) {
  cuda::DeviceBlockHeader header;
  header.flags = cuda::kSumNotFinite;
  header.verdict = Verdict::BadGradient(2);
  header.step = 9;
  const OwnedBlock from(EveryThird(100, 10), header);
  const BlockOnCpu kept = KeptOnDevice(from, {30, false, false, {}});
  EXPECT_EQ(kept.header.count, 30u);
  EXPECT_EQ(kept.header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
  EXPECT_EQ(kept.header.verdict, Verdict::BadGradient(2));
  EXPECT_EQ(kept.header.step, 9u);
}

TEST_F(CudaKeepTopK, AMergeCountsTheFirstLevel) {
  for (const std::int64_t size : {3, 900, 4000}) {
    const Entries a = EveryThird(size, 11);
    Entries b = EveryThird(size, 12);
    for (std::size_t i = 0; i < b.size(); i += 2) b[i].index += 1;
    SparseBlock merged;
    CpuKernels().Merge(MakeBlock(a), MakeBlock(b), &merged);
    const OwnedBlock own(a), theirs(b);
    const std::int64_t both = own.block().capacity + theirs.block().capacity;
    const OwnedBlock out(both), kept(size);
    const ZeroedScratch<cuda::MergeScratch> merging(both);
    const ZeroedScratch<cuda::TopKScratch> scratch(both);
    cuda::LaunchMerge(own.block(), theirs.block(), out.block(), merging.get(), scratch.get().digits,
                      nullptr);
    cuda::LaunchKeepTopK({size, true, false, {}}, out.block(), kept.block(), scratch.get(),
                         nullptr);
    EXPECT_EQ(BlockOnCpu(kept.block()).entries, KeptByCpu(EntriesOf(merged), size));
  }
}

TEST_F(CudaKeepTopK, MoreThanThereIsRoomForIsRefused) {
  const OwnedBlock from(1000), to(100);
  const ZeroedScratch<cuda::TopKScratch> scratch(1000);
  EXPECT_THROW(cuda::LaunchKeepTopK({1000, false, false, {}}, from.block(), to.block(),
                                    scratch.get(), nullptr),
               Error);
}

}  // namespace
}  // namespace hvd_sparse

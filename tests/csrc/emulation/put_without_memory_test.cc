/// Entries returned to a residual are not lost if the device is out of memory.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "csrc/cuda/kernels/cuda_kernels.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kSize = 200;

using Change = std::function<std::int64_t(const Kernels&, SparseBlock*, Span<float>)>;

/// Makes the change on a thread that has no scratch memory yet, and cannot allocate any.
std::int64_t WithoutMemory(const Change& change, SparseBlock* block, Span<float> residual) {
  std::int64_t result = 0;
  std::thread([&] {
    emulation::has_memory = [] { return false; };
    EXPECT_EQ(Thrown([&] { CudaKernels(0).ComputeMoments(residual); }).kind(),
              ErrorKind::kOutOfMemory);
    result = change(CudaKernels(0), block, residual);
    emulation::has_memory = nullptr;
  }).join();
  return result;
}

void ExpectAsOnTheCpu(const Change& change) {
  std::vector<float> of_cpu(3 * kSize), of_gpu(3 * kSize);
  SparseBlock blocks[2] = {MakeBlock(EveryThird(kSize, 7)), MakeBlock(EveryThird(kSize, 7))};
  EXPECT_EQ(WithoutMemory(change, &blocks[0], of_gpu), change(CpuKernels(), &blocks[1], of_cpu));
  EXPECT_EQ(EntriesOf(blocks[0]), EntriesOf(blocks[1]));
  EXPECT_TRUE(SameBits(of_gpu, of_cpu));
}

TEST(PutWithoutMemory, WhatIsDroppedGoesBack) {
  for (const std::int64_t k : {std::int64_t{0}, kSize / 3, kSize - 1}) {
    ExpectAsOnTheCpu([k](const Kernels& kernels, SparseBlock* block, Span<float> residual) {
      block->Finish(kernels.KeepTopK(k, 0, kSize, block, residual));
      return block->count();
    });
  }
}

TEST(PutWithoutMemory, WhatIsNotDeliveredGoesBack) {
  const SparseBlock reduced = MakeBlock(EveryThird(kSize / 2, 8));
  ExpectAsOnTheCpu([&](const Kernels& kernels, SparseBlock* block, Span<float> residual) {
    kernels.Settle(*block, reduced, residual);
    return 0;
  });
}

TEST(PutWithoutMemory, ASelectionGoesBack) {
  ExpectAsOnTheCpu([](const Kernels& kernels, SparseBlock* block, Span<float> residual) {
    kernels.PutBack(*block, 0, kSize, residual);
    return 0;
  });
}

TEST(PutWithoutMemory, CandidatesThatCannotBeFetchedGoBack) {
  constexpr std::int64_t kMany = 1 << 18;  // more than the pinned memory that a first call takes
  const std::vector<float> before = Awkward(kMany, 9);
  std::vector<float> residual = before;
  std::vector<Index> positions(kMany);
  std::iota(positions.begin(), positions.end(), 0);
  SparseBlock block;
  block.Reset(kMany);
  std::thread([&] {
    const auto candidates = CudaKernels(0).NewCandidates(residual, 0, kMany, &block);
    candidates->TakeAt(residual, positions);
    emulation::has_memory = [] { return false; };
    EXPECT_EQ(Thrown([&] { candidates->Fetch(); }).kind(), ErrorKind::kOutOfMemory);
    EXPECT_FALSE(SameBits(residual, before));
    candidates->PutBack();
    emulation::has_memory = nullptr;
    EXPECT_EQ(candidates->count(), 0);
  }).join();
  EXPECT_TRUE(SameBits(residual, before));
}

}  // namespace
}  // namespace hvd_sparse

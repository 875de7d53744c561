/// What orders a device's work, and that ThreadSanitizer misses it where it is missing.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "csrc/cuda/stream.h"

namespace hvd_sparse {
namespace {

constexpr unsigned kThreads = 64;

class OrderOfTheDevice : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// What `body` does is in order if there is `order` in it, and a race without.
void ExpectRaceWithout(const std::function<void(bool order)>& body) {
  body(true);
  EXPECT_DEATH(body(false), "ThreadSanitizer: data race");
}

TEST_F(OrderOfTheDevice, ABarrierOrdersTheThreadsOfABlock) {
  ExpectRaceWithout([](bool order) {
    std::vector<int> numbers(kThreads), seen(kThreads);
    emulation::Launch(1, kThreads, nullptr, [&] {
      static char place;
      auto& shared = emulation::OfBlock<int[kThreads]>(&place);
      shared[threadIdx.x] = static_cast<int>(threadIdx.x);
      order ? __syncthreads() : (void)__any_sync(~0u, true);  // which waits, and orders nothing
      seen[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
    });
    cudaDeviceSynchronize();
    EXPECT_EQ(seen.front(), static_cast<int>(kThreads) - 1);
  });
}

TEST_F(OrderOfTheDevice, FencesOrderBlocksWhoseThreadsCountEachOther) {
  ExpectRaceWithout([](bool order) {
    constexpr unsigned kBlocks = 3;
    std::vector<unsigned> of_block(kBlocks);
    unsigned done = 0, sum = 0;
    emulation::Launch(kBlocks, 32, nullptr, [&] {
      if (threadIdx.x != 0) return;
      of_block[blockIdx.x] = blockIdx.x + 1;
      if (order) __threadfence();
      if (atomicAdd(&done, 1u) + 1 < kBlocks) return;
      if (order) __threadfence();
      for (const unsigned one : of_block) sum += one;
    });
    cudaDeviceSynchronize();
    EXPECT_EQ(sum, 6u);
  });
}

TEST_F(OrderOfTheDevice, AnEventOrdersStreams) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream first, second;
    cuda::Event event;
    std::vector<char> memory(100);
    cudaMemsetAsync(memory.data(), 1, memory.size(), first.get());
    event.Record(first.get());
    if (order) event.LetFollow(second.get());
    cudaMemsetAsync(memory.data(), 2, memory.size(), second.get());
    cudaDeviceSynchronize();
  });
}

TEST_F(OrderOfTheDevice, AnEventOrdersWhatCameBeforeItAlone) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream stream;
    cuda::Event event;
    std::vector<char> memory(100);
    event.Record(stream.get());
    cudaMemsetAsync(memory.data(), 1, memory.size(), stream.get());
    if (order) event.Record(stream.get());
    event.Wait();
    EXPECT_EQ(memory[0], 1);
    cudaDeviceSynchronize();
  });
}

TEST_F(OrderOfTheDevice, TheCpuFollowsAStreamThatItWaitsFor) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream first, second;
    std::vector<char> memory(100);
    cudaMemsetAsync(memory.data(), 1, memory.size(), first.get());
    (order ? first : second).Synchronize();
    EXPECT_EQ(memory[0], 1);
    cudaDeviceSynchronize();
  });
}

TEST_F(OrderOfTheDevice, TheDefaultStreamOrdersOthersUnlessTheyDoNotBlock) {
  ExpectRaceWithout([](bool order) {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, order ? 0 : cudaStreamNonBlocking);
    std::vector<char> memory(100);
    cudaMemsetAsync(memory.data(), 1, memory.size(), stream);
    cudaMemsetAsync(memory.data(), 2, memory.size(), nullptr);
    cudaMemsetAsync(memory.data(), 3, memory.size(), stream);
    cudaDeviceSynchronize();
    cudaStreamDestroy(stream);
  });
}

}  // namespace
}  // namespace hvd_sparse

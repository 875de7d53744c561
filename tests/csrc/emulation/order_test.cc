/// Ordering of a device's work, and ThreadSanitizer's reports of races without it.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "csrc/cuda/base/stream.h"

namespace hvd_sparse {
namespace {

constexpr unsigned kThreads = 64;

class OrderOfTheDevice : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

/// Expects that `body` is race-free if `order` is true, and a data race otherwise.
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
      order ? __syncthreads() : (void)__any_sync(~0u, true);  // waits, but orders nothing
      seen[threadIdx.x] = shared[kThreads - 1 - threadIdx.x];
    });
    cudaDeviceSynchronize();
    EXPECT_EQ(seen.front(), static_cast<int>(kThreads) - 1);
  });
}

/// Counts blocks as they end; the last one adds up what all have written.
unsigned SumOfBlocks(bool fence_before_counting, bool fence_behind_it) {
  constexpr unsigned kBlocks = 3;
  std::vector<unsigned> of_block(kBlocks);
  unsigned done = 0, sum = 0;
  emulation::Launch(kBlocks, 32, nullptr, [&] {
    if (threadIdx.x != 0) return;
    of_block[blockIdx.x] = blockIdx.x + 1;
    if (fence_before_counting) __threadfence();
    if (atomicAdd(&done, 1u) + 1 < kBlocks) return;
    if (fence_behind_it) __threadfence();
    for (const unsigned one : of_block) sum += one;
  });
  cudaDeviceSynchronize();
  return sum;
}

TEST_F(OrderOfTheDevice, AFenceBeforeCountingOrdersWhatWasWritten) {
  ExpectRaceWithout([](bool order) { EXPECT_EQ(SumOfBlocks(order, true), 6u); });
}

TEST_F(OrderOfTheDevice, AFenceBehindCountingOrdersWhatIsRead) {
  ExpectRaceWithout([](bool order) { EXPECT_EQ(SumOfBlocks(true, order), 6u); });
}

TEST_F(OrderOfTheDevice, FencesOrderNobodyWhoseThreadsMeetInNoWord) {
  ExpectRaceWithout([](bool order) {
    unsigned written = 0, words[2] = {}, seen = 0;
    emulation::Launch(2, 32, nullptr, [&] {
      if (threadIdx.x != 0) return;
      if (blockIdx.x == 0) written = 1;
      __threadfence();
      atomicAdd(&words[order ? 0 : blockIdx.x], 1u);
      __threadfence();
      if (blockIdx.x == 1) seen = written;
    });
    cudaDeviceSynchronize();
    EXPECT_EQ(seen, 1u);
  });
}

TEST_F(OrderOfTheDevice, AnEventOrdersStreams) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream first, second;
    cuda::Event event;
    std::vector<char> memory(100);
    cudaMemsetAsync(memory.data(), 1, memory.size(), first.get());
    event.Record(first.get());
    if (order) event.MakeStreamFollow(second.get());
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

/// Device or pinned memory.
struct Allocated {
  char* bytes = nullptr;

  explicit Allocated(bool pinned) {
    void* memory = nullptr;
    (pinned ? cudaMallocHost : cudaMalloc)(&memory, kThreads);
    bytes = static_cast<char*>(memory);
  }
};

TEST_F(OrderOfTheDevice, ACopyOfPlainMemoryMayStillBeUnderWayWhenTheCallReturns) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream stream;
    const Allocated memory(false);
    {
      const std::vector<char> plain(kThreads, 1);
      cudaMemcpy(memory.bytes, plain.data(), plain.size(), cudaMemcpyDefault);
    }  // the host memory has been read
    if (order) cudaDeviceSynchronize();
    cudaMemsetAsync(memory.bytes, 2, kThreads, stream.get());
    cudaFree(memory.bytes);
  });
}

TEST_F(OrderOfTheDevice, ACopyOfPinnedMemoryIsDoneWhenTheCallReturns) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream stream;
    const Allocated memory(false), pinned(true);
    (order
         ? (void)cudaMemcpy(memory.bytes, pinned.bytes, kThreads, cudaMemcpyDefault)
         : (void)cudaMemcpyAsync(memory.bytes, pinned.bytes, kThreads, cudaMemcpyDefault, nullptr));
    cudaMemsetAsync(memory.bytes, 2, kThreads, stream.get());
    cudaFree(memory.bytes);
    cudaFreeHost(pinned.bytes);
  });
}

TEST_F(OrderOfTheDevice, PinnedMemoryIsFreedWhenItsCopiesHaveBeenWaitedFor) {
  ExpectRaceWithout([](bool order) {
    const cuda::Stream stream;
    const Allocated memory(false), pinned(true);
    cudaMemcpyAsync(memory.bytes, pinned.bytes, kThreads, cudaMemcpyDefault, stream.get());
    if (order) stream.Synchronize();
    cudaFreeHost(pinned.bytes);
    cudaFree(memory.bytes);
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

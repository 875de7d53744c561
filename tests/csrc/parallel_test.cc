/// The threads of a pass run every part once, whoever calls, and in a forked child too.

#include "csrc/kernels/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/kernels.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/rank_process.h"
#include "tests/csrc/taking.h"

namespace hvd_sparse {
namespace {

/// Returns true if each part runs once, visibly to the caller.
bool RunsEachPartOnce(std::int64_t parts) {
  std::vector<int> calls(static_cast<std::size_t>(parts));
  RunParts(parts, [&](std::int64_t part, int) { ++calls[static_cast<std::size_t>(part)]; });
  return calls == std::vector<int>(static_cast<std::size_t>(parts), 1);
}

TEST(RunParts, RunsEveryPartOnce) {
  WithOneToThreeThreads([] {
    for (const std::int64_t parts : {0, 1, 2, 3, 7, 100, 10000}) {
      EXPECT_TRUE(RunsEachPartOnce(parts)) << parts << " parts";
    }
  });
}

TEST(RunParts, PartsOfAThreadAscendAndNeverOverlap) {
  // Selection relies on it: a thread takes its parts in ascending order.
  struct alignas(64) OfThread {
    std::atomic<bool> busy{false};
    std::int64_t last = -1;
  };
  WithOneToThreeThreads([] {
    for (int run = 0; run < 200; ++run) {
      std::vector<OfThread> of_thread(static_cast<std::size_t>(KernelThreads()));
      std::atomic<int> wrong{0};
      RunParts(50, [&](std::int64_t part, int thread) {
        if (thread < 0 || thread >= static_cast<int>(of_thread.size())) {
          ++wrong;
          return;
        }
        OfThread& mine = of_thread[static_cast<std::size_t>(thread)];
        wrong += mine.busy.exchange(true) || part <= mine.last ? 1 : 0;
        mine.last = part;
        mine.busy = false;
      });
      ASSERT_EQ(wrong, 0);
    }
  });
}

TEST(RunParts, ThreadsShareTheWork) {
  // Each part waits for all to begin, which takes a thread for each.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  WithOneToThreeThreads([&] {
    std::atomic<int> begun{0};
    const int threads = KernelThreads();
    RunParts(threads, [&](std::int64_t, int) {
      ++begun;
      while (begun < threads && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
    });
    EXPECT_LT(std::chrono::steady_clock::now(), deadline);
  });
}

TEST(RunParts, ManyShortRunsEnd) {
  WithOneToThreeThreads([] {
    for (int run = 0; run < 2000; ++run) ASSERT_TRUE(RunsEachPartOnce(2 + run % 4));
  });
}

TEST(RunParts, CallersAtOnceAllFinish) {
  WithOneToThreeThreads([] {
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller) {
      callers.emplace_back([&] {
        for (int run = 0; run < 500; ++run) wrong += RunsEachPartOnce(20) ? 0 : 1;
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(wrong, 0);
  });
}

TEST(RunParts, APartMayRunPartsItself) {
  WithOneToThreeThreads([] {
    std::atomic<int> wrong{0};
    RunParts(10, [&](std::int64_t, int) { wrong += RunsEachPartOnce(20) ? 0 : 1; });
    EXPECT_EQ(wrong, 0);
  });
}

// ---- How many threads ---------------------------------------------------------------------------

TEST(KernelThreads, IsOneUntilToldOtherwise) {
  EXPECT_EQ(KernelThreads(), 1);
  WithOneToThreeThreads([] {
    const int set = KernelThreads();
    std::thread([set] { EXPECT_EQ(KernelThreads(), set); }).join();  // for the whole process
    for (const int refused : {0, -3}) {
      try {
        SetKernelThreads(refused);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
        EXPECT_EQ(error.what(), "threads must be >= 1, got " + std::to_string(refused));
      }
    }
    EXPECT_EQ(KernelThreads(), set);
  });
  EXPECT_EQ(KernelThreads(), 1);
}

TEST(KernelThreads, AThreadMayStayAlone) {
  const WithKernelThreads threads(kMostTestThreads);
  {
    const AloneInThread alone;
    EXPECT_EQ(KernelThreads(), 1);
    {
      const AloneInThread more;
      EXPECT_EQ(KernelThreads(), 1);
    }
    EXPECT_EQ(KernelThreads(), 1);
    RunParts(10, [](std::int64_t, int thread) { EXPECT_EQ(thread, 0); });
    std::thread([] { EXPECT_EQ(KernelThreads(), kMostTestThreads); }).join();
  }
  EXPECT_EQ(KernelThreads(), kMostTestThreads);
}

TEST(KernelThreads, MayChangeWhileAPassRuns) {
  constexpr std::int64_t kSize = 200000, kRoom = 1000;
  std::atomic<bool> over{false};
  std::thread changing([&] {
    while (!over) {
      for (const int threads : {1, kMostTestThreads}) SetKernelThreads(threads);
    }
  });
  std::vector<float> residual(kSize, 1.0f);
  SparseBlock block;
  block.Reset(kRoom);
  for (int run = 0; run < 2000; ++run) {
    const Tally tally = TakeAbove(CpuKernels(), residual, 0.5f, {kRoom}, &block);
    EXPECT_EQ(tally.above, kSize);
    EXPECT_EQ(tally.taken, kRoom);
    CpuKernels().PutBack(block, 0, kRoom, residual);
  }
  over = true;
  changing.join();
  SetKernelThreads(1);
  EXPECT_EQ(residual, std::vector<float>(kSize, 1.0f));
}

// ---- Forked children have the memory of OpenMP, but not its threads -----------------------------

/// Returns the exit status of a forked child that runs `body`; negative if it hangs.
int InChild(const std::function<bool()>& body) {
  RankProcess child([&](const Instructions&) {
    ::alarm(5);
    return body() ? 0 : 1;
  });
  return child.WaitForExit();
}

TEST(RunParts, WorksInAForkedChild) {
  const WithKernelThreads threads(kMostTestThreads);
  ASSERT_TRUE(RunsEachPartOnce(100));  // so that the parent has threads
  EXPECT_EQ(InChild([] { return KernelThreads() == 1 && RunsEachPartOnce(100); }), 0);
  EXPECT_EQ(KernelThreads(), kMostTestThreads);
  EXPECT_TRUE(RunsEachPartOnce(100));
}

}  // namespace
}  // namespace hvd_sparse

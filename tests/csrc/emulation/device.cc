/// Threads of blocks as fibers that take turns on the thread that launches a kernel.
///
/// A fiber begins on a stack of its own, by setcontext, and then runs one thread after another. It
/// goes on by longjmp: every turn of swapcontext would be a system call, for the sake of signals.

#include "tests/csrc/emulation/device.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <ucontext.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

hvd_sparse::emulation::Dimension threadIdx, blockIdx, gridDim;

namespace hvd_sparse::emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStack = std::size_t{64} << 10;

/// Opens when all have met it, again and again.
struct Barrier {
  unsigned waiting = 0;
  std::uint64_t times = 0;

  void Meet(unsigned all) {
    const std::uint64_t before = times;
    if (++waiting == all) {
      waiting = 0;
      ++times;
    }
    while (times == before) Yield();
  }
};

struct Warp {
  Barrier barrier;
  std::uint64_t words[kWarp];
};

struct Block;

struct Fiber {
  ucontext_t beginning;
  jmp_buf turn;  // where it goes on
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool has_begun = false;
  Block* block = nullptr;
  unsigned thread = 0;
  bool done = false;
};

struct Block {
  unsigned index = 0, threads = 0, left = 0;  // left: not done
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Fiber>> fibers;
};

std::mutex one_kernel_at_a_time;
unsigned most_resident = 1;
const std::function<void()>* kernel = nullptr;
jmp_buf scheduler;
Fiber* running = nullptr;

void RunThreads() {
  for (;;) {
    (*kernel)();
    running->done = true;
    Yield();
  }
}

std::unique_ptr<Fiber> MakeFiber() {
  auto fiber = std::make_unique<Fiber>();
  getcontext(&fiber->beginning);
  fiber->beginning.uc_stack.ss_sp = fiber->stack.get();
  fiber->beginning.uc_stack.ss_size = kStack;
  fiber->beginning.uc_link = nullptr;
  makecontext(&fiber->beginning, &RunThreads, 0);
  return fiber;
}

/// Lets a fiber run until it yields.
__attribute__((noinline)) void GiveTurn(Fiber* fiber) {
  running = fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber->has_begun) _longjmp(fiber->turn, 1);
  fiber->has_begun = true;
  setcontext(&fiber->beginning);
}

void Begin(unsigned index, unsigned threads, Block* block) {
  block->index = index;
  block->threads = block->left = threads;
  block->barrier = Barrier();
  block->warps.assign(threads / kWarp, Warp());
  while (block->fibers.size() < threads) block->fibers.push_back(MakeFiber());
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber& fiber = *block->fibers[thread];
    fiber.block = block;
    fiber.thread = thread;
    fiber.done = false;
  }
}

/// Lets every thread of a block run up to its next barrier.
void Advance(Block* block) {
  blockIdx.x = block->index;
  for (unsigned thread = 0; thread < block->threads; ++thread) {
    Fiber* const fiber = block->fibers[thread].get();
    if (fiber->done) continue;
    threadIdx.x = thread;
    GiveTurn(fiber);
    if (fiber->done) --block->left;
  }
}

Warp& OwnWarp() { return running->block->warps[running->thread / kWarp]; }

}  // namespace

void Launch(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  ++emulated_calls.launches;
  if (blocks == 0 || blocks > INT32_MAX) {
    emulated_error = cudaErrorInvalidConfiguration;
    return;
  }
  const std::lock_guard lock(one_kernel_at_a_time);
  kernel = &body;
  gridDim.x = blocks;
  static std::vector<std::unique_ptr<Block>> spare;  // stacks are kept from launch to launch
  std::vector<std::unique_ptr<Block>> resident;
  unsigned next = 0;
  while (next < blocks && resident.size() < most_resident) {
    if (spare.empty()) spare.push_back(std::make_unique<Block>());
    resident.push_back(std::move(spare.back()));
    spare.pop_back();
    Begin(next++, threads, resident.back().get());
  }
  while (!resident.empty()) {
    for (std::size_t i = 0; i < resident.size();) {
      Advance(resident[i].get());
      if (resident[i]->left > 0) {
        ++i;
      } else if (next < blocks) {
        Begin(next++, threads, resident[i++].get());
      } else {
        spare.push_back(std::move(resident[i]));
        resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
}

Resident::Resident(unsigned blocks) { most_resident = blocks; }
Resident::~Resident() { most_resident = 1; }

void Yield() {
  if (_setjmp(running->turn) == 0) _longjmp(scheduler, 1);
}

void BlockBarrier() {
  Block& block = *running->block;
  block.barrier.Meet(static_cast<unsigned>(block.warps.size()) * kWarp);
}

int OwnLane() { return static_cast<int>(running->thread % kWarp); }

std::uint64_t OfLane(std::uint64_t own, int lane) {
  Warp& warp = OwnWarp();
  warp.words[OwnLane()] = own;
  warp.barrier.Meet(kWarp);
  const std::uint64_t theirs = warp.words[lane];
  warp.barrier.Meet(kWarp);  // all have read before the next call writes
  return theirs;
}

}  // namespace hvd_sparse::emulation

unsigned __ballot_sync(unsigned, bool holds) {
  using namespace hvd_sparse::emulation;
  Warp& warp = OwnWarp();
  warp.words[OwnLane()] = holds ? 1 : 0;
  warp.barrier.Meet(kWarp);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    bits |= static_cast<unsigned>(warp.words[lane]) << lane;
  }
  warp.barrier.Meet(kWarp);
  return bits;
}

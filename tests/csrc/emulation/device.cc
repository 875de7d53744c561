/// Threads of blocks as fibers that take turns on the thread that launches a kernel.
///
/// A fiber starts on a stack of its own, by setcontext, and then runs one thread after another. It
/// resumes by longjmp: every swapcontext would make a system call to save the signal mask.

#include "tests/csrc/emulation/device.h"

#include <cuda_runtime_api.h>
#include <sanitizer/asan_interface.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "tests/csrc/emulation/fences.h"
#include "tests/csrc/emulation/strand.h"

hvd_sparse::emulation::Dimension threadIdx, blockIdx, gridDim;

namespace hvd_sparse::emulation {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStack = std::size_t{64} << 10;
constexpr std::size_t kSharedMemory = std::size_t{48} << 10;  // CUDA's limit for a block
constexpr std::size_t kMostShared = 20;                       // variables of a kernel
constexpr std::size_t kRedZone = 16;  // after each of them, for AddressSanitizer

/// Spare blocks to make before one is reused: a reused block's threads are the same strands, so its
/// work is taken to follow its previous work.
#ifdef HVD_SPARSE_ORDER_IS_CHECKED
constexpr std::size_t kSpareBlocks = 2, kMostSpare = 3;
constexpr unsigned kMostThreads = 5000;  // ThreadSanitizer allows 8,128
#else
constexpr std::size_t kSpareBlocks = 0, kMostSpare = 1000;
constexpr unsigned kMostThreads = UINT32_MAX;
#endif

/// A reusable meeting of threads, which opens once all have called Meet. It orders nothing.
struct Meeting {
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

/// A barrier, which also orders memory: work before it happens before work after it.
struct Barrier {
  Meeting meeting;
  Order orders[2];  // alternating: some may not have left when others enter again

  void Meet(unsigned all) {
    Order* const order = &orders[meeting.times % 2];
    order->PassOn();
    meeting.Meet(all);
    order->Take();
  }
  void Renew() {
    meeting = {};
    for (Order& order : orders) order.Forget();
  }
};

struct Warp {
  Meeting meeting;
  std::uint64_t words[kWarp];
};

struct Block;

/// State shared by the blocks of a launched kernel.
struct Grid {
  std::unique_ptr<const std::function<void()>> body;
  Order end;
  Fences fences;
  std::vector<std::unique_ptr<char[]>> memory;  // of all blocks: freed when all have ended
};

struct Fiber {
  Fiber() = default;
  ~Fiber() { EndStrand(strand); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  ucontext_t beginning;
  jmp_buf turn;  // where it resumes
  std::unique_ptr<char[]> stack{new char[kStack]};
  void* const strand = MakeStrand();
  bool has_begun = false;
  Block* block = nullptr;
  unsigned thread = 0;
  Fences::Own fences;
  bool done = false;
};

/// A shared variable of a block.
struct Shared {
  const void* place;
  void* piece;
};

struct Block {
  unsigned index = 0, threads = 0, left = 0;  // left: unfinished threads
  char* memory = nullptr;                     // kSharedMemory bytes
  std::size_t used = 0;
  Shared shared[kMostShared] = {};
  Order begin;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<std::unique_ptr<Fiber>> fibers;
};

// State of the one kernel that runs at a time.
unsigned most_resident = 1;
Grid* grid = nullptr;
jmp_buf scheduler;
void* strand_of_scheduler = nullptr;
Fiber* running = nullptr;

void RunThreads() {
  for (;;) {
    running->block->begin.Take();
    (*grid->body)();
    grid->end.PassOn();
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
  Become(fiber->strand);
  if (fiber->has_begun) _longjmp(fiber->turn, 1);
  fiber->has_begun = true;
  setcontext(&fiber->beginning);
}

void Begin(unsigned index, unsigned threads, Block* block) {
  block->index = index;
  block->threads = block->left = threads;
  block->barrier.Renew();
  block->warps = std::vector<Warp>(threads / kWarp);
  constexpr std::size_t kBytes = kSharedMemory + kMostShared * kRedZone;
  grid->memory.emplace_back(new char[kBytes]);
  block->memory = grid->memory.back().get();
  std::memset(block->memory, 0xa5, kBytes);
  ASAN_POISON_MEMORY_REGION(block->memory, kBytes);
  block->used = 0;
  for (Shared& shared : block->shared) shared = {};
  block->begin.Forget();
  block->begin.PassOn();
  while (block->fibers.size() < threads) block->fibers.push_back(MakeFiber());
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber& fiber = *block->fibers[thread];
    fiber.block = block;
    fiber.thread = thread;
    fiber.fences = {};
    fiber.done = false;
    NameStrand(fiber.strand, "thread %u of block %u", thread, index);
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

void Launch(unsigned blocks, unsigned threads, cudaStream_t stream,
            const std::function<void()>& body) {
  Given(stream);
  ++emulated_calls.launches;
  if (blocks == 0 || blocks > INT32_MAX) {
    emulated_error = cudaErrorInvalidConfiguration;
    return;
  }
  auto copy = std::make_unique<const std::function<void()>>(body);  // launches copy it, too
  const Working working(stream);
  const Unseen unseen;
  strand_of_scheduler = ThisStrand();
  Grid launched{std::move(copy), {}, {}, {}};
  grid = &launched;
  gridDim.x = blocks;
  static auto& spare = *new std::deque<std::unique_ptr<Block>>;  // kept from launch to launch
  std::vector<std::unique_ptr<Block>> resident;
  unsigned next = 0;
  const auto begin_next = [&] {
    if (spare.size() <= kSpareBlocks) spare.push_front(std::make_unique<Block>());
    resident.push_back(std::move(spare.front()));
    spare.pop_front();
    Begin(next++, threads, resident.back().get());
  };
  const unsigned most = std::min(most_resident, std::max(kMostThreads / threads, 1u));
  while (next < blocks && resident.size() < most) begin_next();
  while (!resident.empty()) {
    for (std::size_t i = 0; i < resident.size();) {
      Advance(resident[i].get());
      if (resident[i]->left > 0) {
        ++i;
        continue;
      }
      spare.push_back(std::move(resident[i]));
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(i));
      if (next < blocks) begin_next();
    }
  }
  while (spare.size() > kMostSpare) spare.pop_back();
  grid->end.Take();
}

Resident::Resident(unsigned blocks) { most_resident = blocks; }
Resident::~Resident() { most_resident = 1; }

void Yield() {
  if (_setjmp(running->turn) != 0) return;
  Become(strand_of_scheduler);
  _longjmp(scheduler, 1);
}

void* SharedAt(const void* place, std::size_t bytes) {
  constexpr std::size_t kAlignment = 16;
  Block& block = *running->block;
  for (std::size_t i = 0; i < kMostShared; ++i) {
    Shared& shared = block.shared[i];
    if (shared.place == place) return shared.piece;
    if (shared.place != nullptr) continue;
    shared = {place, block.memory + block.used + i * kRedZone};
    block.used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (block.used > kSharedMemory) break;  // nvcc would have refused it
    ASAN_UNPOISON_MEMORY_REGION(shared.piece, bytes);
    return shared.piece;
  }
  std::abort();
}

void BlockBarrier() {
  Block& block = *running->block;
  block.barrier.Meet(static_cast<unsigned>(block.warps.size()) * kWarp);
}

void Fence() { grid->fences.Fence(&running->fences); }
void Changes(const void* word) { grid->fences.Change(word, &running->fences); }

int OwnLane() { return static_cast<int>(running->thread % kWarp); }

std::uint64_t OfLane(std::uint64_t own, int lane) {
  Warp& warp = OwnWarp();
  warp.words[OwnLane()] = own;
  warp.meeting.Meet(kWarp);
  const std::uint64_t theirs = warp.words[lane];
  warp.meeting.Meet(kWarp);  // all have read before the next call writes
  return theirs;
}

}  // namespace hvd_sparse::emulation

unsigned __ballot_sync(unsigned, bool holds) {
  using namespace hvd_sparse::emulation;
  Warp& warp = OwnWarp();
  warp.words[OwnLane()] = holds ? 1 : 0;
  warp.meeting.Meet(kWarp);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    bits |= static_cast<unsigned>(warp.words[lane]) << lane;
  }
  warp.meeting.Meet(kWarp);
  return bits;
}

/// A library with NCCL's C interface, as far as csrc/cuda/ calls it, for ranks that are threads of
/// one process and devices that are memory of the CPU.
///
/// Like NCCL's, non-blocking communicators work on a thread of their own and refuse calls
/// meanwhile, and a message without a matching peer is waited for until the communicator is
/// aborted.
///
/// To ThreadSanitizer, messages are work of the streams that they were given to; those of a group
/// are unordered, and a message is received after it was sent. Nothing else here orders ranks, or
/// threads of a rank: nobody may rely on anything that NCCL does not promise.
///
/// FAKE_NCCL_VERSION is the reported version; with FAKE_NCCL_WITHOUT_CONFIG one function is
/// missing.

#include "tests/csrc/nccl/fake_nccl.h"

#include <atomic>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/csrc/emulation/message.h"
#include "tests/csrc/emulation/strand.h"

#ifndef FAKE_NCCL_VERSION
#define FAKE_NCCL_VERSION 23203
#endif

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kInProgress = 7 };

struct UniqueId {
  char bytes[128];
};
struct Config {
  std::size_t size;
  unsigned magic, version;
  int blocking;
};
using hvd_sparse::emulation::Message;
using hvd_sparse::emulation::Part;

/// Marks a thread as inside the library while it lives.
struct Inside {
  hvd_sparse::emulation::Unseen unseen;
  hvd_sparse::emulation::UnseenLocks unseen_locks;
};

/// State shared by the ranks of a communicator.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  std::map<std::pair<int, int>, std::deque<Message>> messages;  // by sender and receiver
};

std::mutex global;
std::map<std::string, std::weak_ptr<World>> worlds;
std::atomic<std::uint64_t> ids{1};
std::atomic<int> communicators{0}, groups{0}, next_error{0}, groups_before_it{0}, unfinished{0};
std::atomic<int> refused{-1}, refusal{0}, changed{-1};  // ranks, and a result
std::atomic<bool> behind{false}, sends_are_held{false};
thread_local std::string last_error;

struct Operation {
  bool sends;
  const void* from;
  void* to;
  std::size_t bytes;
  int peer;
  cudaStream_t stream;
  std::shared_ptr<Part> part = nullptr;  // set once the stream is given the group
};

}  // namespace

struct ncclComm {
  int rank, size;
  std::shared_ptr<World> world;
  std::atomic<int> state{kInProgress};
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::condition_variable wake;
  struct Job {
    std::function<int()> work;
    bool is_on_device;
  };
  std::deque<Job> jobs;
  bool closing = false;
  std::thread worker;

  void Post(std::function<int()> work, bool is_on_device = false) {
    if (is_on_device) ++unfinished;
    const std::lock_guard lock(mutex);
    jobs.push_back({std::move(work), is_on_device});
    wake.notify_all();
  }

  void Loop() {
    const Inside inside;
    std::unique_lock lock(mutex);
    for (;;) {
      wake.wait(lock, [&] { return closing || !jobs.empty(); });
      if (jobs.empty()) return;
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      const int result = job.work();
      if (result != kSuccess || state == kInProgress) state = result;
      if (job.is_on_device)
        --unfinished;  // after the state: a device that seems done has told its errors
      lock.lock();
    }
  }

  /// Waits in the world for a condition that this rank alone cannot make true.
  int AwaitInWorld(std::unique_lock<std::mutex>* lock, const std::function<bool()>& met) {
    world->changed.wait(*lock, [&] { return aborted || met(); });
    return aborted ? kInvalidUsage : kSuccess;
  }

  int Run(const std::vector<Operation>& operations, bool late) {
    std::unique_lock lock(world->mutex);
    for (const Operation& one : operations) {
      if (!one.sends) continue;
      if (late) one.part->ComesLate();
      one.part->Send(one.from, &world->messages[{rank, one.peer}].emplace_back(one.bytes));
    }
    world->changed.notify_all();
    for (const Operation& one : operations) {
      if (one.sends) continue;
      auto& queue = world->messages[{one.peer, rank}];
      if (AwaitInWorld(&lock, [&] { return !queue.empty(); }) != kSuccess) return kInvalidUsage;
      const Message& message = queue.front();
      if (message.bytes.size() != one.bytes) return kInvalidUsage;  // NCCL would hang, or worse
      if (late) one.part->ComesLate();
      one.part->Receive(message, one.to);
      if (one.peer == changed) ++*static_cast<char*>(one.to);
      queue.pop_front();
    }
    return kSuccess;
  }

  void Close() {
    {
      const std::lock_guard lock(mutex);
      closing = true;
      wake.notify_all();
    }
    worker.join();
    --communicators;
  }
};

namespace {

thread_local int depth = 0, own_groups = 0;
thread_local ncclComm* grouped = nullptr;
thread_local std::vector<Operation> operations;

int Refuse(int result, const char* why) {
  last_error = why;
  return result;
}

int Add(ncclComm* comm, const Operation& operation) {
  if (depth == 0) return Refuse(kInvalidUsage, "the stand-in wants groups");
  if (comm->state == kInProgress) return Refuse(kInvalidArgument, "the last call is under way");
  if (operation.peer < 0 || operation.peer >= comm->size) {
    return Refuse(kInvalidArgument, "no such peer");
  }
  grouped = comm;
  operations.push_back(operation);
  return kInProgress;  // any call of a non-blocking communicator may return it
}

}  // namespace

extern "C" {

void fake_nccl_break_group(int result, int groups_before) {
  groups_before_it = groups_before;
  next_error = result;
}
void fake_nccl_refuse_rank(int rank, int result) {
  refused = rank;
  refusal = result;
}
void fake_nccl_hold_sends(bool hold) { sends_are_held = hold; }
void fake_nccl_change_messages_of(int rank) { changed = rank; }
void fake_nccl_run_behind(int on) { behind = on != 0; }
int fake_nccl_groups() { return groups; }
int fake_nccl_groups_of_thread() { return own_groups; }
int fake_nccl_is_idle() { return unfinished == 0; }
int fake_nccl_communicators() { return communicators; }

int ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return kSuccess;
}

int ncclGetUniqueId(UniqueId* id) {
  const Inside inside;
  std::memset(id->bytes, 0x5c, sizeof(id->bytes));
  const std::uint64_t number = ids++;
  std::memcpy(id->bytes + 64, &number, sizeof(number));
  return kSuccess;
}

#ifndef FAKE_NCCL_WITHOUT_CONFIG
int ncclCommInitRankConfig(ncclComm** comm, int size, UniqueId id, int rank, Config* config) {
  const Inside inside;
  if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->version < 21400) {
    return Refuse(kInvalidArgument, "not a configuration");
  }
  if (config->blocking != 0) return Refuse(kInvalidArgument, "the stand-in never blocks");
  auto* made = new ncclComm;
  made->rank = rank;
  made->size = size;
  {
    const std::lock_guard lock(global);
    auto& known = worlds[std::string(id.bytes, sizeof(id.bytes))];
    made->world = known.lock();
    if (made->world == nullptr) known = made->world = std::make_shared<World>();
  }
  ++communicators;
  made->worker = std::thread([made] { made->Loop(); });
  made->Post([made]() -> int {
    if (made->rank == refused) return refusal;
    std::unique_lock lock(made->world->mutex);
    ++made->world->joined;
    made->world->changed.notify_all();
    return made->AwaitInWorld(&lock, [made] { return made->world->joined == made->size; });
  });
  *comm = made;
  return kInProgress;
}
#endif

int ncclCommGetAsyncError(ncclComm* comm, int* result) {
  *result = comm->state;
  return kSuccess;
}

int ncclCommFinalize(ncclComm* comm) {
  const Inside inside;
  comm->state = kInProgress;
  comm->Post([] { return kSuccess; });
  return kInProgress;
}

int ncclCommDestroy(ncclComm* comm) {
  const Inside inside;
  comm->Close();
  delete comm;
  return kSuccess;
}

int ncclCommAbort(ncclComm* comm) {
  const Inside inside;
  {
    const std::lock_guard lock(comm->world->mutex);
    comm->aborted = true;
    comm->world->changed.notify_all();
  }
  return ncclCommDestroy(comm);
}

int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (depth == 0) return Refuse(kInvalidUsage, "no group was begun");
  if (--depth > 0 || grouped == nullptr) return kSuccess;
  for (Operation& one : operations) one.part = std::make_shared<Part>(one.stream);
  const Inside inside;  // from here on: callers' streams follow their own work
  ncclComm* const comm = grouped;
  grouped = nullptr;
  ++groups;
  ++own_groups;
  if (!behind) comm->state = kInProgress;
  const bool breaks = next_error != kSuccess && groups_before_it-- == 0;
  comm->Post(
      [comm, late = behind.load(), now = std::move(operations),
       error = breaks ? next_error.exchange(kSuccess) : kSuccess] {
        return error != kSuccess ? error : comm->Run(now, late);
      },
      /*is_on_device=*/true);
  operations.clear();
  return behind ? kSuccess : kInProgress;
}

int ncclSend(const void* from, std::size_t count, int type, int peer, ncclComm* comm,
             cudaStream_t stream) {
  const Inside inside;
  while (sends_are_held) std::this_thread::yield();
  if (type != 1) return Refuse(kInvalidArgument, "the stand-in moves bytes");
  return Add(comm, {true, from, nullptr, count, peer, stream});
}

int ncclRecv(void* to, std::size_t count, int type, int peer, ncclComm* comm, cudaStream_t stream) {
  const Inside inside;
  if (type != 1) return Refuse(kInvalidArgument, "the stand-in moves bytes");
  return Add(comm, {false, nullptr, to, count, peer, stream});
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidArgument ? "invalid argument" : result == 6 ? "remote error" : "error";
}

const char* ncclGetLastError(ncclComm*) { return last_error.c_str(); }
}

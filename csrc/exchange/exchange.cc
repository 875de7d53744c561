#include "csrc/exchange/exchange.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/exchange/intent.h"

namespace hvd_sparse {

/// Memory that is never freed because MPI may still read it: after a failure, blocks that it has
/// not sent yet. Allocated in advance, since an exchange may end for lack of memory.
struct Exchange::LeakedToMpi {
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Buffer> swapped;
  LeakedToMpi* before = nullptr;
};

Exchange::Exchange(std::unique_ptr<Communicator> comm, SelectOn select_on, Nodes nodes, bool checks)
    : comm_(std::move(comm)),
      nodes_(std::move(nodes)),
      checks_(checks),
      leaked_to_mpi_(std::make_unique<LeakedToMpi>()),
      exchanger_(std::make_unique<Worker>()),
      selector_(select_on == SelectOn::kEngine ? std::make_unique<Worker>() : nullptr) {}

Exchange::~Exchange() {
  bool amid_a_step = false;
  {
    const std::lock_guard lock(mutex_);
    amid_a_step = AnyIs(State::kStarted) || AnyIs(State::kArrived);
  }
  if (amid_a_step) Fail("it was closed while gradients were in flight");
  selector_.reset();
  exchanger_.reset();
  ReleaseMemory();
  for (const auto& slot : slots_) slot->bucket->step().ReleaseDevices();
  if (ended_) LeakToMpi();
}

void Exchange::LeakToMpi() {
  static std::mutex mutex;
  static LeakedToMpi* last = nullptr;
  leaked_to_mpi_->slots.swap(slots_);
  leaked_to_mpi_->swapped.swap(swapped_);
  const std::lock_guard lock(mutex);
  leaked_to_mpi_->before = last;
  last = leaked_to_mpi_.release();
}

Exchange::Slot& Exchange::SlotOf(int bucket) {
  const int end = first_bucket_ + static_cast<int>(slots_.size());
  Require(bucket >= first_bucket_ && bucket < end, "bucket must lie in [", first_bucket_, ", ", end,
          "), got ", bucket);
  return *slots_[static_cast<std::size_t>(bucket - first_bucket_)];
}

bool Exchange::AnyIs(State state) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [state](const auto& slot) { return slot->state == state; });
}

void Exchange::Reach(State state, Slot* slot) {
  {
    const std::lock_guard lock(mutex_);
    slot->state = state;
  }
  arrived_.notify_all();
}

int Exchange::AddBucket(BucketSpec spec) {
  const std::lock_guard lock(mutex_);
  const int id = first_bucket_ + static_cast<int>(slots_.size());
  NodePlace place = NodePlace::Alone(Rank(), Size());
  const int local_size = nodes_.LocalSize().value_or(1);
  const bool sums_nodes = SumsNodes(spec.collective, spec.nodes_first, Size(), local_size);
  if (spec.device.IsCpu() && sums_nodes) place = nodes_.PlaceOf(Rank(), Size());
  auto slot = std::make_unique<Slot>(this);
  slot->bucket = std::make_unique<Bucket>(id, std::move(spec), place);
  const Device device = slot->bucket->spec().device;
  slot->kernels = &KernelsFor(device);
  // From now on the selector serves all buckets, so that they stay in order.
  if (!device.IsCpu() && selector_ == nullptr) selector_ = std::make_unique<Worker>();
  slots_.push_back(std::move(slot));
  return id;
}

void Exchange::Note(std::string note) {
  const std::lock_guard lock(mutex_);
  if (checks_) note_ = std::move(note);  // else it need not be equal
}

void Exchange::ClearBuckets() {
  if (HasEnded()) ThrowEnded();
  const std::lock_guard lock(mutex_);
  for (const auto& slot : slots_) {
    Require(slot->state == State::kIdle, "the buckets cannot be changed in the middle of a step: '",
            slot->bucket->spec().name, "' was started and not committed");
  }
  if (started_) first_bucket_ += static_cast<int>(slots_.size());
  started_ = false;
  slots_.clear();
}

void Exchange::Start(int id, Launch launch) {
  Check();
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slot = &SlotOf(id);
    const Bucket& bucket = *slot->bucket;
    bucket.Validate(launch);
    Require(!measuring_, "bucket '", bucket.spec().name, "' was started during a swap");
    Require(slot->state == State::kIdle, "bucket '", bucket.spec().name,
            "' was started twice in one step");
    slot->ready = slot->kernels->EndOf(launch.stream);
    slot->state = State::kStarted;
    started_ = true;
    slot->selected = false;
    slot->stream = launch.stream;
    slot->written.reset();
    slot->wait_begin = slot->wait_end = 0;
  }
  const bool known = Run(*slot, "start", [&] {
    const std::lock_guard lock(mutex_);
    const BucketSpec& spec = slot->bucket->spec();
    const bool may_connect = spec.by_devices && Size() > 1 && devices_.MayBeThere();
    slot->route = RouteOf(FindCollective(spec.collective), spec.wire, may_connect);
    const bool is_first = !std::exchange(slot->was_started, true);
    slot->intent.clear();
    if (is_first || checks_) {
      slot->intent = IntentOf(spec, slot->bucket->id(), steps_, launch, note_);
    }
  });
  if (!known) return Reach(State::kArrived, slot);
  slot->launch = std::move(launch);
  selector_ == nullptr ? Select(slot) : selector_->Post(&slot->select_task);
}

void Exchange::Select(Slot* slot) {
  const bool done = Run(*slot, "select", [&] {
    slot->kernels->Follow(slot->ready.get());
    slot->bucket->Select(std::move(slot->launch), Rank(), *slot->kernels);
  });
  {
    const std::lock_guard lock(mutex_);
    slot->selected = done;
  }
  exchanger_->Post(&slot->collective_task);
}

void Exchange::RunCollective(Slot* slot) {
  Bucket& bucket = *slot->bucket;
  const Kernels& kernels = *slot->kernels;
  Run(*slot, "exchange", [&] {
    if (!slot->intent.empty()) {
      RequireSameIntent(comm_.get(), slot->intent,
                        Concat("bucket '", bucket.spec().name, "', check"));
    }
    kernels.Follow(slot->ready.get());
    GpuCollectives* gpu_collectives = nullptr;
    if (slot->route != Route::kCalls) {
      gpu_collectives = devices_.CollectivesFor(bucket.spec().device, comm_.get());
    }
    bucket.step().Reduce(*comm_, kernels, gpu_collectives);
  });
  // Also after a failure: the bucket may have left gradients to be written later.
  Try(*slot, "exchange", [&] {
    std::shared_ptr<const Mark> written = kernels.EndOfOwn();
    const std::lock_guard lock(mutex_);
    slot->written = std::move(written);
  });
  Reach(State::kArrived, slot);
}

template <typename Work>
bool Exchange::Run(const Slot& slot, const char* phase, const Work& work) {
  return !HasEnded() && Try(slot, phase, work);
}

template <typename Work>
bool Exchange::Try(const Slot& slot, const char* phase, const Work& work) {
  try {
    work();
    return true;
  } catch (...) {
    End(CurrentError(Rank(), "bucket '", slot.bucket->spec().name, "', ", phase));
    return false;
  }
}

bool Exchange::Wait(int id, double seconds, StreamHandle stream) {
  std::unique_lock lock(mutex_);
  Slot& slot = SlotOf(id);
  Require(ended_ || slot.state != State::kIdle, "bucket '", slot.bucket->spec().name,
          "' is waited for, but was not started");
  if (slot.wait_begin == 0) slot.wait_begin = SteadySeconds();
  const bool in_time = arrived_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    return ended_ ? !AnyIs(State::kStarted) : slot.state != State::kStarted;
  });
  if (ended_ && !AnyIs(State::kStarted)) {
    lock.unlock();
    ThrowEnded();
  }
  if (!in_time) return false;
  if (slot.wait_end == 0) slot.wait_end = SteadySeconds();
  slot.kernels->MakeStreamFollow(stream, slot.written.get());
  return true;
}

BucketStats Exchange::Stats(int bucket) const {
  const std::lock_guard lock(mutex_);
  const Slot& slot = const_cast<Exchange*>(this)->SlotOf(bucket);
  BucketStats stats = slot.bucket->stats();
  stats.wait_begin = slot.wait_begin;
  stats.wait_end = slot.wait_end;
  return stats;
}

/// Takes the mutex; throws the error that ended the exchange.
std::unique_lock<std::mutex> Exchange::LockWhileOpen() {
  std::unique_lock lock(mutex_);
  if (ended_) {
    lock.unlock();
    ThrowEnded();
  }
  return lock;
}

/// Commits buckets that have arrived, or undoes their part in the step if no rank applies it. Takes
/// no memory: other ranks may have committed. The caller holds the mutex.
template <typename Included>
Exchange::Refusal Exchange::Settle(const Included& included, const std::string& refuse) {
  Refusal refusal;
  for (const auto& slot : slots_) {
    if (!included(*slot)) continue;
    if (refusal.why.empty()) refusal.why = slot->bucket->Problem();
    refusal.largest = std::min(refusal.largest, slot->bucket->LargestKept(Size()));
  }
  if (refusal.why.empty()) refusal.why = refuse;
  for (const auto& slot : slots_) {
    if (!included(*slot)) continue;
    slot->state = State::kCommitted;
    slot->written.reset();
    if (!std::exchange(slot->selected, false)) continue;
    Bucket& bucket = *slot->bucket;
    if (refusal.why.empty()) {
      bucket.step().Commit();
      continue;
    }
    bucket.step().PutBack(*slot->kernels);
    const float largest = bucket.LargestKept(Size());
    if (std::isfinite(largest)) bucket.DropAbove(largest, *slot->kernels);
  }
  return refusal;
}

void Exchange::CommitBuckets(const std::vector<int>& buckets) {
  Refusal refusal;
  {
    const std::unique_lock lock = LockWhileOpen();
    for (const int id : buckets) {
      const Slot& slot = SlotOf(id);
      Require(slot.state == State::kArrived, "bucket '", slot.bucket->spec().name,
              "' is committed once in a step, after it has arrived");
    }
    const auto is_one = [&](const Slot& slot) {
      return std::find(buckets.begin(), buckets.end(), slot.bucket->id()) != buckets.end();
    };
    refusal = Settle(is_one, "");
  }
  refusal.ThrowIfAny("part of the step");
}

std::string Exchange::Problem() const {
  const std::lock_guard lock(mutex_);
  std::string problem;
  for (const auto& slot : slots_) {
    if (problem.empty() && slot->state == State::kArrived) problem = slot->bucket->Problem();
  }
  return problem;
}

void Exchange::Commit(const std::string& refuse) {
  Refusal refusal;
  {
    const std::unique_lock lock = LockWhileOpen();
    for (const auto& slot : slots_) {
      Require(slot->state != State::kStarted, "the step cannot end: bucket '",
              slot->bucket->spec().name, "' is in flight");
    }
    const auto has_arrived = [](const Slot& slot) { return slot.state == State::kArrived; };
    refusal = Settle(has_arrived, refuse);
    for (const auto& slot : slots_) slot->state = State::kIdle;
    ++steps_;
    comm_->Committed(steps_);
  }
  refusal.ThrowIfAny("step");
}

void Exchange::Check() { CheckBy(&Communicator::Check); }

void Exchange::CheckAtEnd() { CheckBy(&Communicator::CheckAtEnd); }

void Exchange::CheckBy(void (Communicator::*check)()) {
  if (!HasEnded()) {
    try {
      (comm_.get()->*check)();
      return;
    } catch (...) {
      End(CurrentError(Rank(), "a look at the other ranks"));
    }
  }
  ThrowEnded();
}

void Exchange::ReleaseMemory() noexcept {
  const std::lock_guard lock(mutex_);
  if (ended_) PutBackAll();
}

void Exchange::Fail(std::string_view reason) noexcept {
  EndBy(Described(ErrorKind::kExchangeFailed, reason));
}

void Exchange::EndBy(const Error& error) noexcept {
  End(Described(KindOnPeers(error.kind()), "rank ", Rank(), " ended the exchange: ", error.what()),
      error.what());
}

void Exchange::Acknowledge() {
  if (HasEnded()) comm_->Acknowledge();
}

bool Exchange::HasEnded() const {
  const std::lock_guard lock(mutex_);
  return ended_.has_value();
}

/// `reason` is the text that the other ranks receive. They would wait for a rank that cannot send
/// it: if there is no memory even for a short one, this process ends, which they notice.
void Exchange::End(const Error& error, const char* reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = error;
  }
  try {
    comm_->Fail(error.kind(), reason);
  } catch (const std::bad_alloc&) {
    comm_->Fail(error.kind(), "no memory");
  }
  arrived_.notify_all();
}

/// Puts the selected entries of a step that no rank will apply back into the residuals.
void Exchange::PutBackAll() {
  if (put_back_ || AnyIs(State::kStarted)) return;
  put_back_ = true;
  for (auto& slot : slots_) {
    try {
      slot->kernels->MakeStreamFollow(slot->stream, slot->written.get());
      if (slot->selected) slot->bucket->step().PutBack(*slot->kernels);
    } catch (...) {
      // The device has failed; the error that ended the exchange says more, and other buckets may
      // still be put back.
    }
    slot->selected = false;
    slot->state = State::kIdle;
  }
}

void Exchange::ThrowEnded() {
  {
    const std::lock_guard lock(mutex_);
    PutBackAll();
  }
  throw Error(*ended_);
}

}  // namespace hvd_sparse

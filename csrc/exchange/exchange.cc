#include "csrc/exchange/exchange.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/warn.h"
#include "csrc/collectives/nccl_for.h"
#include "csrc/exchange/intent.h"
#include "csrc/exchange/swap.h"
#include "csrc/kernels/kernels_for.h"

namespace hvd_sparse {
namespace {

/// Keeps memory for ever that MPI may still read: after a failure, blocks that it has not sent yet.
template <typename T>
void LeaveToMpi(std::vector<T>* memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>;
  const std::lock_guard lock(mutex);
  std::move(memory->begin(), memory->end(), std::back_inserter(*kept));
  memory->clear();
}

/// What is being caught, as what ends an exchange.
Error Caught(int rank, const std::string& where) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kOutOfMemory, Concat("rank ", rank, " ran out of memory in ", where)};
  } catch (const std::exception& error) {
    return {ErrorKind::kExchangeFailed,
            Concat("rank ", rank, " failed in ", where, ": ", error.what())};
  }
}

}  // namespace

Exchange::Exchange(std::unique_ptr<Communicator> comm, SelectOn select_on, Nodes nodes, bool checks)
    : comm_(std::move(comm)),
      nodes_(std::move(nodes)),
      checks_(checks),
      exchanger_(std::make_unique<Worker>()),
      selector_(select_on == SelectOn::kEngine ? std::make_unique<Worker>() : nullptr) {}

Exchange::~Exchange() {
  {
    std::unique_lock lock(mutex_);
    if (in_flight_ > 0 && !ended_) {
      lock.unlock();
      Fail("it was closed while gradients were in flight");
    }
  }
  selector_.reset();
  exchanger_.reset();
  for (const auto& slot : slots_) slot->bucket->LeaveDevices();
  if (!ended_) return;
  LeaveToMpi(&slots_);
  LeaveToMpi(&swapped_);
}

Exchange::Slot& Exchange::SlotOf(int bucket) {
  const int end = first_bucket_ + static_cast<int>(slots_.size());
  Require(bucket >= first_bucket_ && bucket < end, "bucket must lie in [", first_bucket_, ", ", end,
          "), got ", bucket);
  return *slots_[static_cast<std::size_t>(bucket - first_bucket_)];
}

std::string Exchange::NameOf(int bucket) {
  const std::lock_guard lock(mutex_);
  return SlotOf(bucket).bucket->spec().name;
}

int Exchange::AddBucket(BucketSpec spec) {
  const std::lock_guard lock(mutex_);
  const int id = first_bucket_ + static_cast<int>(slots_.size());
  NodePlace place;
  if (FindCollective(spec.collective).SumsNodesFirst()) place = nodes_.PlaceOf(Rank());
  auto slot = std::make_unique<Slot>();
  slot->bucket = std::make_unique<Bucket>(id, std::move(spec), place);
  const Device device = slot->bucket->spec().device;
  slot->kernels = &KernelsFor(device);
  // From now on it serves all buckets, so that they stay in order.
  if (!device.IsCpu() && selector_ == nullptr) selector_ = std::make_unique<Worker>();
  slots_.push_back(std::move(slot));
  return id;
}

void Exchange::Note(std::string note) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(note);
}

void Exchange::ClearBuckets() {
  const std::lock_guard lock(mutex_);
  for (const auto& slot : slots_) {
    Require(slot->state == State::kIdle, "the buckets cannot be changed in the middle of a step: '",
            slot->bucket->spec().name, "' was started and not committed");
  }
  first_bucket_ += static_cast<int>(slots_.size());
  slots_.clear();
}

void Exchange::Start(int id, Launch launch) {
  Check();
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = SlotOf(id);
    const Bucket& bucket = *slot.bucket;
    bucket.Validate(launch);
    Require(!swapping_, "bucket '", bucket.spec().name, "' was started during a swap");
    Require(slot.state == State::kIdle, "bucket '", bucket.spec().name,
            "' was started twice in one step");
    slot.ready = slot.kernels->EndOf(launch.stream);
    slot.state = State::kStarted;
    slot.selected = false;
    slot.stream = launch.stream;
    slot.written.reset();
    ++in_flight_;
  }
  try {
    HandOver(id, std::move(launch));
  } catch (...) {  // no memory even for that
    const auto rethrow = [] { throw; };
    Run(id, "start", rethrow, true);
  }
}

void Exchange::HandOver(int id, Launch launch) {
  Bucket* bucket = nullptr;
  const Kernels* kernels = nullptr;
  std::shared_ptr<const Mark> ready;
  std::string intent;
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = SlotOf(id);
    bucket = slot.bucket.get();
    kernels = slot.kernels;
    ready = std::move(slot.ready);
    if (checks_) intent = IntentOf(bucket->spec(), id, steps_, launch, note_);
  }
  auto reduce = [this, id, bucket, kernels, ready, intent = std::move(intent)] {
    const auto work = [&] {
      if (checks_) {
        RequireSameIntent(comm_.get(), intent, Concat("bucket '", bucket->spec().name, "', check"));
      }
      kernels->Follow(ready.get());
      bucket->Reduce(*comm_, *kernels, NetworkFor(*bucket));
      auto written = kernels->EndOfOwn();
      const std::lock_guard lock(mutex_);
      SlotOf(id).written = std::move(written);
    };
    Run(id, "exchange", work, true);
  };
  auto select = [this, id, bucket, kernels, ready](Launch&& now) {
    const auto work = [&] {
      kernels->Follow(ready.get());
      bucket->Select(std::move(now), comm_->Rank(), *kernels);
    };
    Run(id, "select", work, false);
  };
  if (selector_ == nullptr) {
    select(std::move(launch));
    exchanger_->Post(reduce);
    return;
  }
  selector_->Post([this, select, reduce, now = std::make_shared<Launch>(std::move(launch))] {
    select(std::move(*now));
    exchanger_->Post(reduce);
  });
}

/// Between the devices, all ranks connect when a bucket that lies on one is first reduced, and
/// where they did, all such buckets go that way, wherever they lie: ranks need not lie alike.
DeviceNetwork* Exchange::NetworkFor(const Bucket& bucket) {
  if (!bucket.CanUseDevices() || Size() == 1) return nullptr;
  const Device device = bucket.spec().device;
  if (!devices_ && !device.IsCpu() && BuiltWithNccl()) {
    devices_ = ConnectDevices(comm_.get(), device);
    static std::atomic<bool> said{false};
    const bool news = devices_->network == nullptr && !devices_->declined;
    if (news && Rank() == 0 && !said.exchange(true)) {
      Warn("gtopk between GPUs goes by way of the CPUs, since NCCL is not used: ",
           devices_->problem, " (HVD_SPARSE_NCCL=auto)");
    }
  }
  return devices_ ? devices_->network.get() : nullptr;
}

template <typename Work>
void Exchange::Run(int id, const char* phase, const Work& work, bool last) {
  bool done = false;
  if (!HasEnded()) {
    try {
      work();
      done = true;
    } catch (...) {
      const Error error = Caught(Rank(), Concat("bucket '", NameOf(id), "', ", phase));
      End(error, error.what());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = SlotOf(id);
    if (!last) {
      slot.selected = done;
      return;
    }
    slot.state = State::kArrived;
    --in_flight_;
  }
  arrived_.notify_all();
}

bool Exchange::Wait(int id, double seconds, StreamHandle stream) {
  std::unique_lock lock(mutex_);
  Slot& slot = SlotOf(id);
  Require(slot.state != State::kIdle, "bucket '", slot.bucket->spec().name,
          "' is waited for, but was not started");
  const bool in_time = arrived_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    return ended_ ? in_flight_ == 0 : slot.state == State::kArrived;
  });
  if (ended_ && in_flight_ == 0) {
    lock.unlock();
    ThrowEnded();
  }
  if (in_time) slot.kernels->LetFollow(stream, slot.written.get());
  return in_time;
}

const BucketStats& Exchange::Stats(int bucket) const {
  const std::lock_guard lock(mutex_);
  return const_cast<Exchange*>(this)->SlotOf(bucket).bucket->stats();
}

void Exchange::Commit(const std::string& refuse) {
  std::string why;
  {
    std::unique_lock lock(mutex_);
    if (ended_) {
      lock.unlock();
      ThrowEnded();
    }
    for (auto& slot : slots_) {
      if (slot->state == State::kIdle) continue;
      Bucket& bucket = *slot->bucket;
      Require(slot->state == State::kArrived, "the step cannot end: bucket '", bucket.spec().name,
              "' is in flight");
      if (!why.empty()) continue;
      if (bucket.bad_rank() == kSumOverflows) {
        const bool nodes = FindCollective(bucket.spec().collective).SumsNodesFirst();
        why = Concat("the sum of the ", nodes ? "residuals of a node or of all nodes" : "gradients",
                     " in bucket '", bucket.spec().name, "' overflows");
      } else if (bucket.bad_rank() != kNoRank) {
        why = Concat("the gradient of rank ", bucket.bad_rank(), " in bucket '", bucket.spec().name,
                     "' holds NaN or Inf");
      } else if (bucket.overflows() > 0) {
        why = Concat("the sum of the gradients in bucket '", bucket.spec().name, "' overflows in ",
                     bucket.overflows(), " entries");
      }
    }
    if (why.empty()) why = refuse;
    for (auto& slot : slots_) {
      if (slot->selected) {
        why.empty() ? slot->bucket->Commit(*slot->kernels) : slot->bucket->PutBack(*slot->kernels);
      }
      slot->selected = false;
      slot->written.reset();
      slot->state = State::kIdle;
    }
    ++steps_;
    comm_->Committed(steps_);
  }
  if (!why.empty()) {
    Throw(ErrorKind::kNonFinite, why,
          ": no rank applies this step, and the residuals keep all its finite entries");
  }
}

std::vector<double> Exchange::Swap(int peer, std::int64_t bytes, int repetitions) {
  Check();
  RequireSwap(*comm_, peer, bytes, repetitions);
  {
    const std::lock_guard lock(mutex_);
    Require(in_flight_ == 0 && !swapping_, "a swap with rank ", peer, " must wait until ",
            swapping_ ? "another swap is over" : "no bucket is in flight");
    swapping_ = true;
  }
  std::vector<double> seconds;
  try {
    seconds = TimedSwaps(comm_.get(), peer, bytes, repetitions, &swapped_);
  } catch (...) {
    const Error error = Caught(Rank(), Concat("a swap with rank ", peer));
    End(error, error.what());
  }
  {
    const std::lock_guard lock(mutex_);
    swapping_ = false;
  }
  if (HasEnded()) ThrowEnded();
  return seconds;
}

void Exchange::Check() { CheckBy(&Communicator::Check); }

void Exchange::CheckAtEnd() { CheckBy(&Communicator::CheckAtEnd); }

void Exchange::CheckBy(void (Communicator::*check)()) {
  if (!HasEnded()) {
    try {
      (comm_.get()->*check)();
      return;
    } catch (const Error& error) {
      End(error, error.what());
    }
  }
  ThrowEnded();
}

void Exchange::Fail(const std::string& reason) {
  const std::string message = Concat("rank ", Rank(), " ended the exchange: ", reason);
  End({ErrorKind::kExchangeFailed, message}, reason);
}

bool Exchange::HasEnded() const {
  const std::lock_guard lock(mutex_);
  return ended_.has_value();
}

/// `reason` is `error` as the other ranks are told it.
void Exchange::End(const Error& error, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = error;
  }
  comm_->Fail(error.kind(), reason);
  arrived_.notify_all();
}

/// Of a step that nobody will apply, the selected entries return to the residuals.
void Exchange::PutBackAll() {
  if (put_back_ || in_flight_ > 0) return;
  put_back_ = true;
  for (auto& slot : slots_) {
    try {
      slot->kernels->LetFollow(slot->stream, slot->written.get());
      if (slot->selected) slot->bucket->PutBack(*slot->kernels);
    } catch (const Error&) {
      // The device has failed; what ended the exchange says more.
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
  comm_->Acknowledge();
  throw Error(*ended_);
}

}  // namespace hvd_sparse

/// The core's interface for TensorFlow ops: numbered drivers, buffers, errors.

#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/bindings/driver_interface.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/status.h"

namespace hvd_sparse {

namespace tf = tensorflow;

/// The memory of a step: residual and velocity are variables' memory, states and room (scratch) its
/// own.
struct OpMemory {
  tf::Tensor residual, states, velocity, room;
};

inline absl::Status Closed() {
  return absl::FailedPreconditionError(
      "this exchange is closed: Horovod was shut down, build it anew");
}

/// The drivers that Python has registered, by number, and the memory of their steps.
class Drivers {
  struct Entry;

 public:
  /// Keeps a driver alive while an op calls it. It must live on the stack of one thread and only
  /// for the duration of calls: ending the driver waits for it, so an op must not hold it while it
  /// waits for something that happens only when the driver ends.
  class Use {
   public:
    Use() = default;
    ~Use() {
      if (entry_ != nullptr) Get().Leave(entry_);
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    const HvdSparseDriver& operator*() const { return driver_; }
    const HvdSparseDriver* operator->() const { return &driver_; }

    /// Returns true if this thread is inside a call, and so cannot wait until all calls have ended.
    static bool OnThisThread() { return on_this_thread_ > 0; }

   private:
    friend class Drivers;

    HvdSparseDriver driver_{};
    Entry* entry_ = nullptr;
    inline static thread_local int on_this_thread_ = 0;
  };

  static Drivers& Get() {
    static auto* const drivers = new Drivers;
    return *drivers;
  }

  void Add(std::int64_t number, const HvdSparseDriver& driver) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = drivers_[number];
    entry.driver = driver;
    entry.is_open = true;
    entry.process = ::getpid();
  }

  /// Makes a driver unknown to ops. The memory of its last step stays, since the step may be in
  /// flight.
  void Close(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found != drivers_.end()) found->second.is_open = false;
  }

  /// Waits until no op is inside a call of a closed driver. Returns at once in a forked child,
  /// where the calling threads do not exist.
  void AwaitUses(std::int64_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    left_.wait(lock, [&] {
      const auto found = drivers_.find(number);
      return found == drivers_.end() || found->second.uses == 0 ||
             found->second.process != ::getpid();
    });
  }

  /// Removes a closed driver whose steps have all ended. Does nothing if another driver has its
  /// number already.
  void Remove(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found == drivers_.end() || found->second.is_open || found->second.uses > 0) return;
    drivers_.erase(found);
  }

  absl::Status Find(std::int64_t number, Use* use) noexcept;

  /// Keeps the memory of the next step alive, in place of the previous step's.
  void Keep(std::int64_t number, OpMemory memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found != drivers_.end()) found->second.memory = std::move(memory);
  }

  /// Returns the memory of the step that ends; empty if the driver is gone.
  OpMemory Take(std::int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    return found == drivers_.end() ? OpMemory{} : std::exchange(found->second.memory, {});
  }

 private:
  struct Entry {
    HvdSparseDriver driver{};
    bool is_open = false;
    pid_t process = 0;  // the process whose threads call it
    int uses = 0;       // number of Uses
    OpMemory memory;
  };

  void Leave(Entry* entry) {
    --Use::on_this_thread_;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--entry->uses == 0) left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  std::map<std::int64_t, Entry> drivers_;
};

/// Returns TensorFlow's error for a kind of hvd_sparse::ErrorKind; the table has the same order.
inline absl::Status StatusOf(std::int32_t kind, const char* message) {
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kInvalidArgument,     // kInvalidArgument
      absl::StatusCode::kFailedPrecondition,  // kUnavailable
      absl::StatusCode::kAborted,             // kPeerLost; TensorFlow reserves kUnavailable
      absl::StatusCode::kAborted,             // kPeerLeft
      absl::StatusCode::kDeadlineExceeded,    // kTimeout
      absl::StatusCode::kAborted,             // kExchangeFailed
      absl::StatusCode::kInvalidArgument,     // kNonFinite, as in tf.debugging.check_numerics
      absl::StatusCode::kAborted,             // kDisagreement
      absl::StatusCode::kResourceExhausted,   // kOutOfMemory
  };
  constexpr std::int32_t kinds = sizeof(kCodes) / sizeof(kCodes[0]);
  static_assert(kinds == static_cast<std::int32_t>(kLastErrorKind) + 1);
  if (kind == HVD_SPARSE_DONE) return absl::OkStatus();
  return absl::Status(kind < kinds ? kCodes[kind] : absl::StatusCode::kInternal, message);
}

/// Returns the status of the exception being handled; without a message if there is no memory for
/// one.
inline absl::Status StatusOfCaught() noexcept {
  absl::StatusCode code = absl::StatusCode::kInternal;
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      code = absl::StatusCode::kResourceExhausted;
      return absl::Status(code, "an op of hvd_sparse ran out of memory");
    } catch (const std::exception& error) {
      return absl::Status(code, error.what());
    }
  } catch (...) {
    return absl::Status(code, "");
  }
}

/// Returns the status that a call returns or throws: an exception in an op would end the process.
template <typename Call>
absl::Status Guarded(const Call& call) noexcept {
  try {
    return call();
  } catch (...) {
    return StatusOfCaught();
  }
}

inline absl::Status Drivers::Find(std::int64_t number, Use* use) noexcept {
  return Guarded([&] {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = drivers_.find(number);
    if (found == drivers_.end() || !found->second.is_open) return Closed();
    use->driver_ = found->second.driver;
    use->entry_ = &found->second;
    ++found->second.uses;
    ++Use::on_this_thread_;
    return absl::OkStatus();
  });
}

/// Ends the exchange on all ranks during a step. A closed driver is skipped: the code that closes
/// it cancels it.
inline void Cancel(std::int64_t number, const char* reason) noexcept {
  Drivers::Use driver;
  if (Drivers::Get().Find(number, &driver).ok()) driver->cancel(driver->driver, reason);
}

/// Ends the exchange on all ranks with the message of a status.
inline void Fail(const HvdSparseDriver& driver, const absl::Status& status) noexcept {
  try {
    driver.fail(driver.driver, std::string(status.message()).c_str());
  } catch (const std::bad_alloc&) {
    driver.fail(driver.driver, "no memory");
  }
}

/// Returns the number of a type in hvd_sparse::DType.
inline std::int32_t NumberOf(tf::DataType dtype) {
  switch (dtype) {
    case tf::DT_FLOAT:
      return 0;
    case tf::DT_DOUBLE:
      return 1;
    case tf::DT_HALF:
      return 2;
    default:
      return 3;  // the only other type that ops take is bfloat16
  }
}

inline HvdSparseBuffer BufferOf(const tf::Tensor& tensor) {
  return {tensor.data(), tensor.NumElements(), NumberOf(tensor.dtype())};
}

}  // namespace hvd_sparse

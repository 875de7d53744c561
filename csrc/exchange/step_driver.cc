#include "csrc/exchange/step_driver.h"

#include <new>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {

StepDriver::StepDriver(Exchange* exchange, std::vector<OpGradients> ops,
                       std::vector<DrivenBucket> buckets, Hooks hooks, StepRules rules)
    : StepEngine(exchange, std::move(ops), std::move(buckets), rules),
      hooks_(std::move(hooks)),
      sums_([this] { exchange_->Check(); }),
      to_watch_([this] { WatchStarted(); }),
      to_wait_for_sums_([this] { WaitForSums(); }),
      to_finish_([this] { Finish(); }),
      to_end_([this] { CallEndDone(TakeEnding()); }) {}

StepDriver::~StepDriver() {
  Cancel("it was closed while gradients were in flight");
  sums_.Interrupt();
}

void StepDriver::TimeSteps(bool wanted) {
  const std::lock_guard lock(mutex_);
  timer_.Time(wanted);
}

bool StepDriver::Begin(const StepMemory& memory) {
  RequireOpen();
  const bool check_finite = StepEngine::Begin(memory);
  sums_.Begin(layout_.DenseOps(), rules_.others, check_finite);
  return check_finite;
}

/// Throws the error that ended the exchange between two steps, before the next one begins: no op of
/// that step waits for other ranks yet, except perhaps those that form sums.
void StepDriver::RequireOpen() {
  try {
    exchange_->Check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    pending_error_.error.reset();
    if (layout_.DenseOps() == 0 && !rules_.others) exchange_->Acknowledge();
    throw;
  }
}

bool StepDriver::Launch(int op, const std::vector<GradView>& gradients, Done done, Origin origin) {
  if (!HandOver(op, gradients, {}, std::move(done), origin)) return false;
  const bool all = layout_.op(static_cast<std::size_t>(op)).segments > 0 && sums_.HandedOver();
  // Else Finish waits for the sums.
  if (all && !layout_.Exchanges()) finisher_.Post(&to_wait_for_sums_);
  return true;
}

/// Waits for all buckets that were started.
void StepDriver::WatchStarted() {
  for (;;) {
    int bucket = DrivenBucket::kDense;
    StreamHandle stream = 0;
    {
      const std::lock_guard lock(mutex_);
      if (watched_ == next_) return;
      bucket = layout_.bucket(layout_.at(watched_++)).bucket;
      stream = memory_.origin.stream;
    }
    if (bucket != DrivenBucket::kDense) Watch(bucket, stream);
  }
}

/// Waits for a bucket. If the exchange ends meanwhile, so does the step: the ops that are still
/// missing may depend on other ranks, and so never come.
void StepDriver::Watch(int bucket, StreamHandle stream) {
  try {
    kernels_.Follow(nullptr);
    // If the exchange has ended, Wait throws, but only once it no longer uses the step's memory.
    while (!exchange_->Wait(bucket, kWaitSlice, stream)) {
    }
  } catch (...) {
    const Error error = EndByCaught("the wait for a bucket");
    const std::lock_guard lock(mutex_);
    FinishAfter(std::make_exception_ptr(error));
  }
}

/// Commits or refuses the step and calls every `done`. No bucket is started until then.
void StepDriver::Finish() {
  WatchStarted();
  std::exception_ptr error;
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    if (!op_states_.Any()) return;  // several threads saw the exchange end
    error = failure_;
    all = next_ == layout_.buckets();
  }
  if (error == nullptr) {
    WaitForSums();
    const std::lock_guard lock(mutex_);
    error = failure_;
  }
  if (error == nullptr) error = Commit();
  exchange_->ReleaseMemory();  // it belongs to the callers from now on
  // An executor returns to the user when all its ops have returned, also those that form sums,
  // which may wait for ever for a lost rank.
  if (error != nullptr && sums_.missing() == 0) exchange_->Acknowledge();
  std::vector<Done>* released = nullptr;
  {
    const std::lock_guard lock(mutex_);
    released = &op_states_.Release();
    if (all) ++steps_;
    next_ = watched_ = 0;
    failure_ = nullptr;
  }
  for (Done& one : *released) {
    if (one) std::exchange(one, nullptr)(error);
  }
}

/// Waits for the dense sums, until the exchange ends or the deadline passes.
void StepDriver::WaitForSums() {
  try {
    sums_.Await();
  } catch (...) {
    const Error error = EndByCaught("the wait for dense sums");
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::make_exception_ptr(error);
  }
}

/// Commits the step. Returns the error that failed or refused it, or null.
std::exception_ptr StepDriver::Commit() {
  try {
    if (hooks_.exchanged) hooks_.exchanged();
    exchange_->Commit(sums_.Problem());
  } catch (...) {
    const Error error = EndByCaught("the end of a step");
    return error.kind() == ErrorKind::kNonFinite ? Refuse(error) : std::make_exception_ptr(error);
  }
  Afterwards([this] {
    if (!sampler_.empty() && hooks_.measured) hooks_.measured(sampler_.Complete());
  });
  return nullptr;
}

/// Runs `work` after a committed step, which it cannot undo: other ranks apply what has left the
/// residuals. An error ends the exchange, and fails the next step, if there is one.
template <typename Work>
void StepDriver::Afterwards(const Work& work) noexcept {
  try {
    work();
  } catch (...) {
    const Error error = EndByCaught("the end of a step");
    const std::lock_guard lock(mutex_);
    pending_error_.error = error;
  }
}

StepDriver::PendingError::~PendingError() {
  if (!error) return;
  try {
    Warn("after a step that counts, and was the last one: ", error->what());
  } catch (const std::bad_alloc&) {  // then it is not logged
  }
}

/// Refuses the step, which no rank applies. Returns `error`, or what failed; null if the rules make
/// NaN in the gradients take its place.
std::exception_ptr StepDriver::Refuse(const Error& error) {
  try {
    dense_path_.Refuse(sums_.finite());
    if (rules_.non_finite != NonFinite::kMark) return std::make_exception_ptr(error);
    const std::lock_guard lock(mutex_);
    op_states_.Mark(memory_.origin);
    return nullptr;
  } catch (...) {
    return std::make_exception_ptr(EndByCaught("the end of a step"));
  }
}

void StepDriver::End(Done done) {
  sums_.Interrupt();  // all have arrived
  if (!hooks_.step_ended) return CallEndDone(done);
  {
    const std::lock_guard lock(mutex_);
    if (!ending_) {
      ending_ = std::move(done);
      return finisher_.Post(&to_end_);
    }
  }
  constexpr char reason[] = "a step was ended twice";
  exchange_->Fail(reason);
  done(std::make_exception_ptr(Described(ErrorKind::kExchangeFailed, reason)));
}

StepDriver::Done StepDriver::TakeEnding() {
  const std::lock_guard lock(mutex_);
  return *std::exchange(ending_, std::nullopt);
}

void StepDriver::CallEndDone(const Done& done) {
  std::exception_ptr error;
  try {
    EndStep();
  } catch (...) {
    error = std::make_exception_ptr(EndByCaught("the end of a step"));
    exchange_->Acknowledge();  // all ops of the step are over
  }
  done(error);
}

void StepDriver::EndStep() {
  const bool exchanges = layout_.Exchanges();
  if (!exchanges && !sums_.finite()) dense_path_.Refuse(false);
  bool counts = false;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    counts = dense_path_.Settle();
    if (counts && exchanges) NoteResidual(steps_);  // which counts this step already
    begun_ = false;
    memory_ = {};
    if (!exchanges) ++steps_;
  }
  std::optional<StepEnd> ended;
  Afterwards([&] {
    const std::lock_guard lock(mutex_);
    ended = timer_.End();
  });
  if (!counts && !exchanges && rules_.non_finite == NonFinite::kRefuse) {
    exchange_->Commit(sums_.Problem());
  }
  if (!ended || !hooks_.step_ended) return;
  Afterwards([&] { hooks_.step_ended(*ended); });
}

}  // namespace hvd_sparse

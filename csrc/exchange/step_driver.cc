#include "csrc/exchange/step_driver.h"

#include <new>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

StepDriver::StepDriver(Exchange* exchange, std::vector<OpGradients> ops,
                       std::vector<DrivenBucket> buckets, Hooks hooks, StepRules rules)
    : exchange_(exchange),
      hooks_(std::move(hooks)),
      sums_([exchange] { exchange->Check(); }),
      engine_(exchange, std::move(ops), std::move(buckets), rules,
              [this](bool failed) {
                if (failed) sums_.Interrupt();
                finisher_.Post(&to_advance_);
              }),
      to_advance_([this] { Advance(); }),
      to_await_sums_([this] { AwaitSums(); }),
      to_end_([this] { CallEndDone(TakeEnding()); }) {}

StepDriver::~StepDriver() {
  engine_.Cancel("it was closed while gradients were in flight");
  sums_.Interrupt();
}

bool StepDriver::Begin(const StepMemory& memory) {
  RequireOpen();
  sums_.Begin(engine_.layout().DenseOps(), engine_.rules().others);
  return engine_.Begin(memory);
}

/// Throws the error that ended the exchange between two steps, before the next one begins: no op of
/// that step waits for other ranks yet, except perhaps those that form sums.
void StepDriver::RequireOpen() {
  try {
    exchange_->Check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    pending_error_.error.reset();
    if (engine_.layout().DenseOps() == 0 && !engine_.rules().others) exchange_->Acknowledge();
    throw;
  }
}

bool StepDriver::Launch(int op, const std::vector<GradView>& gradients, Done done, Origin origin) {
  if (!engine_.Launch(op, gradients, {}, origin, std::move(done))) return false;
  const StepLayout& layout = engine_.layout();
  const bool all = layout.op(static_cast<std::size_t>(op)).segments > 0 && sums_.HandedOver();
  if (all && !layout.Exchanges()) finisher_.Post(&to_await_sums_);  // else Commit waits for them
  return true;
}

void StepDriver::Summed(const std::vector<GradView>& sums) {
  engine_.Summed(sums);
  sums_.Arrived();
}

void StepDriver::SummedAs(bool finite) {
  engine_.SummedAs(finite);
  sums_.Arrived();
}

/// Waits for the buckets that were started. If no other one will be, commits or refuses the step
/// and calls every `done`; else the engine's progress calls this again.
void StepDriver::Advance() {
  const bool all_started = engine_.AllStarted();  // before the wait, which is then for all of them
  try {
    while (!engine_.Wait(kWaitSlice)) {
    }
  } catch (const Error&) {  // the engine keeps it
  }
  if (!all_started) return;
  std::exception_ptr error = engine_.Failure();
  if (error == nullptr) error = Commit();
  engine_.Abandon();
  // An executor returns to the user when all its ops have returned, also those that form sums,
  // which may wait for ever for a lost rank.
  if (error != nullptr && sums_.missing() == 0) exchange_->Acknowledge();
  engine_.TellAll(error);
}

/// Commits the step. Returns the error that failed or refused it, or null.
std::exception_ptr StepDriver::Commit() {
  bool applied = false;
  try {
    sums_.Await();
    if (const std::exception_ptr failure = engine_.Failure()) return failure;
    if (hooks_.exchanged) hooks_.exchanged(engine_.Stats());
    applied = engine_.Commit();
  } catch (...) {
    return std::make_exception_ptr(engine_.EndByCaught("the end of a step"));
  }
  Afterwards([&] {
    if (!applied || !hooks_.measured) return;
    const std::vector<StepSample>& samples = engine_.Samples();
    if (!samples.empty()) hooks_.measured(samples);
  });
  return nullptr;
}

/// Waits for the dense sums of a step that exchanges nothing, until the exchange ends or the
/// deadline passes.
void StepDriver::AwaitSums() {
  try {
    sums_.Await();
  } catch (...) {
    engine_.EndByCaught("the wait for dense sums");
  }
}

/// Runs `work` after a committed step, which it cannot undo: other ranks apply what has left the
/// residuals. An error ends the exchange, and fails the next step, if there is one.
template <typename Work>
void StepDriver::Afterwards(const Work& work) noexcept {
  try {
    work();
  } catch (...) {
    const Error error = engine_.EndByCaught("the end of a step");
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
    if (!engine_.layout().Exchanges()) engine_.Commit();  // else Advance has done so
  } catch (...) {
    error = std::make_exception_ptr(engine_.EndByCaught("the end of a step"));
    exchange_->Acknowledge();  // all ops of the step are over
  }
  Afterwards([&] {
    const StepEnd ended = engine_.EndTimes();
    if (error == nullptr && hooks_.step_ended) hooks_.step_ended(ended);
  });
  done(error);
}

}  // namespace hvd_sparse

#include "csrc/exchange/step_driver.h"

#include <numeric>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {

StepDriver::StepDriver(Exchange* exchange, std::vector<OpGradients> ops,
                       std::vector<DrivenBucket> buckets, Hooks hooks, StepRules rules)
    : exchange_(exchange),
      hooks_(std::move(hooks)),
      rules_(rules),
      kernels_(KernelsFor(rules.device)),
      layout_(std::move(ops)),
      op_states_(layout_.size()),
      timer_(layout_.size(), kernels_),
      dense_path_(layout_.size(), kernels_),
      sums_([this] { exchange_->Check(); }),
      sampler_(rules_.measure_every, kernels_),
      to_watch_([this] { WatchStarted(); }),
      to_wait_for_sums_([this] { WaitForSums(); }),
      to_finish_([this] { Finish(); }),
      to_end_([this] { CallEndDone(TakeEnding()); }) {
  CheckRules(rules_);
  layout_.Adopt(std::move(buckets));
}

void StepDriver::Replace(std::vector<DrivenBucket> buckets) {
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "buckets cannot be replaced while gradients are in flight");
  layout_.Adopt(std::move(buckets));
  dense_path_.MarkAllPending();
}

void StepDriver::Reorder(const std::vector<int>& order) {
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "buckets cannot be reordered while gradients are in flight");
  layout_.Reorder(order);
}

void StepDriver::ContinueAfter(std::int64_t steps) {
  Require(steps >= 0, "steps must be at least 0, got ", steps);
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "steps cannot be counted anew while gradients are in flight");
  steps_ = steps;
  dense_path_.MarkAllPending();
}

void StepDriver::TimeSteps(bool wanted) {
  const std::lock_guard lock(mutex_);
  timer_.Time(wanted);
}

std::int64_t StepDriver::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::int64_t StepDriver::Room() const {
  const std::lock_guard lock(mutex_);
  return RoomFor(layout_, rules_);
}

bool StepDriver::Begin(const StepMemory& memory) {
  RequireOpen();
  {
    const std::lock_guard lock(mutex_);
    CheckMemory(memory, layout_, rules_);
    if (!op_states_.Any()) {
      begun_ = true;
      memory_ = memory;
      op_states_.Begin();
      sampler_.Begin(steps_);
      dense_path_.Begin(memory.origin.stream);
      timer_.Begin(memory.origin.stream);
      const bool check_finite =
          rules_.momentum > 0 || layout_.Exchanges() || dense_path_.AnyPending();
      sums_.Begin(layout_.DenseOps(), rules_.others, check_finite);
      return check_finite;
    }
  }
  constexpr char reason[] = "a step was begun before the last one had ended";
  Cancel(reason);
  Throw(ErrorKind::kExchangeFailed, reason);
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
  Require(0 <= op && op < static_cast<int>(op_states_.size()), "op must lie in [0, ",
          op_states_.size(), "), got ", op);
  const auto number = static_cast<std::size_t>(op);
  const std::int64_t numel =
      std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradView& one) { return sum + one.numel; });
  Require(numel == layout_.op(number).numel, "op ", op, " must have ", layout_.op(number).numel,
          " elements, got ", numel);
  bool is_dense = false, twice = false, starts = false;
  DenseInFlight dense;
  std::vector<GradView> kept = gradients;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    Require(begun_, "op ", op, " came before its step");
    Require(origin == memory_.origin, "op ", op, " must come from the stream of its step, on ",
            memory_.origin.device.Name(), "; got another one, on ", origin.device.Name());
    timer_.Arrived(number);
    is_dense = layout_.bucket_of(number).is_dense();
    twice = is_dense ? !op_states_.SendDense(number)
                     : !op_states_.Take(number, std::move(kept), std::move(done));
    starts = !is_dense && !twice && !std::exchange(draining_, true);
    if (is_dense && !twice) {
      dense = DenseInFlightOf(number, memory_, layout_, rules_);
      const bool all = layout_.op(number).segments > 0 && sums_.HandedOver();
      // Else Finish waits for the sums.
      if (all && !layout_.Exchanges()) finisher_.Post(&to_wait_for_sums_);
    }
  }
  if (twice) {
    const std::string reason = Concat("op ", op, " was handed over twice in one step");
    Fail(reason);
    Throw(ErrorKind::kExchangeFailed, reason);
  }
  if (starts) Drain();
  if (!is_dense) return false;
  exchange_->Check();
  try {
    dense_path_.Join(dense, gradients);
  } catch (...) {
    throw EndByCaught("op ", op);
  }
  return true;
}

/// Starts all buckets whose turn it is. One thread at a time does that, so that the order holds;
/// the others return at once.
void StepDriver::Drain() noexcept {
  for (;;) {
    std::size_t bucket = 0;
    {
      const std::lock_guard lock(mutex_);
      while (next_ < layout_.buckets() && layout_.bucket(layout_.at(next_)).is_dense()) ++next_;
      if (failure_ != nullptr || next_ == layout_.buckets()) {
        draining_ = false;
        finisher_.Post(&to_finish_);
        return;
      }
      bucket = layout_.at(next_);
      if (!HasAllOf(bucket)) {
        draining_ = false;
        break;
      }
    }
    try {
      Start(bucket);
    } catch (...) {
      const Error error = EndByCaught("the start of a bucket");
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::make_exception_ptr(error);
    }
  }
  // The ops handed over now wait for earlier buckets. If the exchange has ended, the ops of
  // those may have been released already, and nothing would ever start again.
  try {
    exchange_->Check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    FinishAfter(std::current_exception());
  }
}

bool StepDriver::HasAllOf(std::size_t bucket) const {
  const auto [first, end] = layout_.OpsOf(bucket);
  return op_states_.HasAll(first, end);
}

/// Starts the bucket whose turn it is, and all of whose ops are there.
void StepDriver::Start(std::size_t bucket) {
  hvd_sparse::Launch launch;
  {
    const std::lock_guard lock(mutex_);
    const auto [first, end] = layout_.OpsOf(bucket);
    launch = LaunchOf(bucket, op_states_.GradientsOf(first, end), steps_, memory_, layout_, rules_);
  }
  sampler_.Starts(bucket, launch);
  exchange_->Start(layout_.bucket(bucket).bucket, std::move(launch));
  const std::lock_guard lock(mutex_);
  ++next_;
  finisher_.Post(&to_watch_);
}

}  // namespace hvd_sparse

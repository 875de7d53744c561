#include "csrc/exchange/step_driver.h"

#include <numeric>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {

StepDriver::StepDriver(Exchange* exchange, std::vector<Piece> pieces,
                       std::vector<DrivenBucket> buckets, Hooks hooks, StepRules rules)
    : exchange_(exchange),
      hooks_(std::move(hooks)),
      rules_(rules),
      kernels_(KernelsFor(rules.device)),
      layout_(std::move(pieces)),
      pieces_(layout_.size()),
      timer_(layout_.size(), kernels_),
      passage_(layout_.size(), kernels_),
      sums_([this] { exchange_->Check(); }),
      sampler_(rules_.measure_every, kernels_),
      to_watch_([this] { WatchStarted(); }),
      to_wait_for_sums_([this] { WaitForSums(); }),
      to_finish_([this] { Finish(); }),
      to_end_([this] { TellEnd(TakeEnding()); }) {
  CheckRules(rules_);
  layout_.Adopt(std::move(buckets));
}

void StepDriver::Replace(std::vector<DrivenBucket> buckets) {
  const std::lock_guard lock(mutex_);
  Require(!pieces_.Any(), "buckets cannot be replaced while gradients are in flight");
  layout_.Adopt(std::move(buckets));
  passage_.LetAllOwe();
}

void StepDriver::Reorder(const std::vector<int>& order) {
  const std::lock_guard lock(mutex_);
  Require(!pieces_.Any(), "buckets cannot be reordered while gradients are in flight");
  layout_.Reorder(order);
}

void StepDriver::GoOnAfter(std::int64_t steps) {
  Require(steps >= 0, "steps must be at least 0, got ", steps);
  const std::lock_guard lock(mutex_);
  Require(!pieces_.Any(), "steps cannot be counted anew while gradients are in flight");
  steps_ = steps;
  passage_.LetAllOwe();
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
    if (!pieces_.Any()) {
      begun_ = true;
      memory_ = memory;
      pieces_.Begin();
      sampler_.Begin(steps_);
      passage_.Begin(memory.origin.stream);
      timer_.Begin(memory.origin.stream);
      const bool looks = rules_.momentum > 0 || layout_.Exchanges() || passage_.OwedAnywhere();
      sums_.Begin(layout_.Passing(), rules_.others, looks);
      return looks;
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
    untold_.error.reset();
    if (layout_.Passing() == 0 && !rules_.others) exchange_->Acknowledge();
    throw;
  }
}

bool StepDriver::Launch(int piece, const std::vector<GradView>& gradients, Done done,
                        Origin origin) {
  Require(0 <= piece && piece < static_cast<int>(pieces_.size()), "piece must lie in [0, ",
          pieces_.size(), "), got ", piece);
  const auto number = static_cast<std::size_t>(piece);
  const std::int64_t numel =
      std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradView& one) { return sum + one.numel; });
  Require(numel == layout_.piece(number).numel, "piece ", piece, " must have ",
          layout_.piece(number).numel, " elements, got ", numel);
  bool passes = false, twice = false, starts = false;
  Passage::Piece along;
  std::vector<GradView> kept = gradients;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    Require(begun_, "piece ", piece, " came before its step");
    Require(origin == memory_.origin, "piece ", piece,
            " must come from the stream of its step, on ", memory_.origin.device.Name(),
            "; got another one, on ", origin.device.Name());
    timer_.Arrived(number);
    passes = layout_.bucket_of(number).passes();
    twice =
        passes ? !pieces_.Pass(number) : !pieces_.Take(number, std::move(kept), std::move(done));
    starts = !passes && !twice && !std::exchange(draining_, true);
    if (passes && !twice) {
      along = PassageOf(number, memory_, layout_, rules_);
      const bool all = layout_.piece(number).segments > 0 && sums_.Pass();
      // Else Finish waits for the sums.
      if (all && !layout_.Exchanges()) finisher_.Post(&to_wait_for_sums_);
    }
  }
  if (twice) {
    const std::string reason = Concat("piece ", piece, " was handed over twice in one step");
    Fail(reason);
    Throw(ErrorKind::kExchangeFailed, reason);
  }
  if (starts) Drain();
  if (!passes) return false;
  exchange_->Check();
  try {
    passage_.Join(along, gradients);
  } catch (...) {
    throw EndByCaught("piece ", piece);
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
      while (next_ < layout_.buckets() && layout_.bucket(layout_.at(next_)).passes()) ++next_;
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
  // The pieces handed over now wait for earlier buckets. If the exchange has ended, the pieces of
  // those may have been released already, and nothing would ever start again.
  try {
    exchange_->Check();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    FinishAfter(std::current_exception());
  }
}

bool StepDriver::HasAllOf(std::size_t bucket) const {
  const auto [first, end] = layout_.PiecesOf(bucket);
  return pieces_.HasAll(first, end);
}

/// Starts the bucket whose turn it is, and all of whose pieces are there.
void StepDriver::Start(std::size_t bucket) {
  hvd_sparse::Launch launch;
  {
    const std::lock_guard lock(mutex_);
    const auto [first, end] = layout_.PiecesOf(bucket);
    launch = LaunchOf(bucket, pieces_.GradientsOf(first, end), steps_, memory_, layout_, rules_);
  }
  sampler_.Starts(bucket, launch);
  exchange_->Start(layout_.bucket(bucket).bucket, std::move(launch));
  const std::lock_guard lock(mutex_);
  ++next_;
  finisher_.Post(&to_watch_);
}

}  // namespace hvd_sparse

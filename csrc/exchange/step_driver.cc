#include "csrc/exchange/step_driver.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr double kWaitSlice = 1.0;  // seconds

}  // namespace

StepDriver::StepDriver(Exchange* exchange, std::vector<DrivenBucket> buckets,
                       std::function<void()> after_step)
    : exchange_(exchange),
      buckets_(std::move(buckets)),
      after_step_(std::move(after_step)),
      places_(buckets_.size()) {
  Require(!buckets_.empty(), "a StepDriver must have buckets, got none");
  for (const DrivenBucket& bucket : buckets_) {
    Require(!bucket.ks.empty() && bucket.ks.front().first == 0, "the ks of bucket ", bucket.bucket,
            " must begin at step 0");
  }
}

StepDriver::~StepDriver() { Cancel("it was closed while gradients were in flight"); }

std::int64_t StepDriver::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::vector<std::int64_t> StepDriver::KsOf(const DrivenBucket& bucket) const {
  auto later = std::find_if(bucket.ks.begin(), bucket.ks.end(),
                            [this](const auto& phase) { return phase.first > steps_; });
  return std::prev(later)->second;
}

void StepDriver::Launch(int place, std::vector<GradView> gradients, Span<float> residual,
                        Span<SelectionState> states, Done done) {
  Require(0 <= place && place < static_cast<int>(places_.size()), "place must lie in [0, ",
          places_.size(), "), got ", place);
  const DrivenBucket& bucket = buckets_[static_cast<std::size_t>(place)];
  bool twice = false;
  {
    const std::lock_guard lock(mutex_);
    Place& here = places_[static_cast<std::size_t>(place)];
    twice = here.taken;
    if (!twice) {
      hvd_sparse::Launch launch;
      launch.decays.assign(gradients.size(), 1.0f);
      launch.gradients = std::move(gradients);
      launch.residual = residual;
      launch.states = states;
      launch.ks = KsOf(bucket);
      launch.scale = bucket.scale;
      launch.output_scale = bucket.output_scale;
      here.taken = true;
      here.waiting = std::move(launch);
      here.done = std::move(done);
      if (draining_) return;
      draining_ = true;
    }
  }
  if (!twice) return Drain();
  const std::string reason = Concat("bucket ", bucket.bucket, " was handed over twice in one step");
  Cancel(reason);
  finisher_.Post([done = std::move(done), reason] {
    done(std::make_exception_ptr(Error(ErrorKind::kExchangeFailed, reason)));
  });
}

/// Starts all buckets whose turn it is. One thread at a time does that, so that the order holds;
/// others go on at once.
void StepDriver::Drain() {
  for (;;) {
    hvd_sparse::Launch launch;
    std::size_t place = 0;
    {
      const std::lock_guard lock(mutex_);
      place = next_;
      const bool all = place == places_.size();
      if (failure_ != nullptr || all) {
        draining_ = false;
        finisher_.Post([this] { Finish(); });
        return;
      }
      if (!places_[place].waiting) {
        draining_ = false;
        break;
      }
      launch = std::move(*places_[place].waiting);
      places_[place].waiting.reset();
    }
    try {
      exchange_->Start(buckets_[place].bucket, std::move(launch));
      const std::lock_guard lock(mutex_);
      ++next_;
    } catch (const Error& error) {
      exchange_->Fail(error.what());  // does nothing if that is what ended it
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
  }
  // What came now waits for buckets before it. Where the exchange has ended they may have been here
  // already, and nothing would ever start again.
  try {
    exchange_->Check();
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
    if (!draining_) finisher_.Post([this] { Finish(); });
  }
}

void StepDriver::Finish() {
  std::exception_ptr error;
  std::size_t started = 0;
  {
    const std::lock_guard lock(mutex_);
    error = failure_;
    started = next_;
  }
  try {
    // An exchange that has ended throws, but not before it has left all memory alone.
    for (std::size_t place = 0; place < started; ++place) {
      while (!exchange_->Wait(buckets_[place].bucket, kWaitSlice)) {
      }
    }
    if (error == nullptr) {
      if (after_step_) after_step_();
      exchange_->Commit("");
    }
  } catch (const Error&) {
    if (error == nullptr) error = std::current_exception();
  }
  std::vector<Done> done;
  {
    const std::lock_guard lock(mutex_);
    for (Place& place : places_) {
      if (place.done) done.push_back(std::move(place.done));
      place = Place();
    }
    if (started == places_.size()) ++steps_;
    next_ = 0;
    failure_ = nullptr;
  }
  for (const Done& one : done) one(error);
}

void StepDriver::Cancel(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!InStep()) return;
  }
  exchange_->Fail(reason);
  const std::lock_guard lock(mutex_);
  if (!InStep()) return;
  if (failure_ == nullptr) {
    const std::string message = Concat("rank ", exchange_->Rank(), " ended the exchange: ", reason);
    failure_ = std::make_exception_ptr(Error(ErrorKind::kExchangeFailed, message));
  }
  if (!draining_) finisher_.Post([this] { Finish(); });
}

void StepDriver::Fail(const std::string& reason) {
  exchange_->Fail(reason);
  Cancel(reason);
}

bool StepDriver::InStep() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& one) { return one.taken; });
}

}  // namespace hvd_sparse

#include "csrc/exchange/step_driver.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "csrc/base/clock.h"
#include "csrc/base/error.h"
#include "csrc/kernels/cpu_join.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

constexpr double kWaitSlice = 1.0;  // seconds
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

void PutNaN(const GradView& gradient) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  if (gradient.numel == 0) return;
  switch (gradient.dtype) {
    case DType::kFloat32:
      *static_cast<float*>(gradient.data) = static_cast<float>(nan);
      break;
    case DType::kFloat64:
      *static_cast<double*>(gradient.data) = nan;
      break;
    case DType::kFloat16:
      *static_cast<Float16*>(gradient.data) = Narrow<Float16>(static_cast<float>(nan));
      break;
    case DType::kBFloat16:
      *static_cast<BFloat16*>(gradient.data) = Narrow<BFloat16>(static_cast<float>(nan));
      break;
  }
}

}  // namespace

StepDriver::StepDriver(Exchange* exchange, std::vector<Piece> pieces,
                       std::vector<DrivenBucket> buckets, Hooks hooks, NonFinite non_finite)
    : exchange_(exchange),
      pieces_(std::move(pieces)),
      hooks_(std::move(hooks)),
      non_finite_(non_finite) {
  Require(!pieces_.empty(), "a StepDriver must have pieces, got none");
  places_.resize(pieces_.size());
  for (std::size_t i = 1; i < pieces_.size(); ++i) {
    places_[i].offset = places_[i - 1].offset + pieces_[i - 1].numel;
    places_[i].first_segment = places_[i - 1].first_segment + pieces_[i - 1].segments;
  }
  Adopt(std::move(buckets));
}

StepDriver::~StepDriver() { Cancel("it was closed while gradients were in flight"); }

void StepDriver::Replace(std::vector<DrivenBucket> buckets) {
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "buckets cannot be replaced while gradients are in flight");
  Adopt(std::move(buckets));
}

void StepDriver::Adopt(std::vector<DrivenBucket> buckets) {
  std::vector<std::size_t> first_piece = {0};
  for (const DrivenBucket& bucket : buckets) {
    Require(bucket.pieces > 0, "a bucket must have pieces, got ", bucket.pieces);
    Require(bucket.passes() || (!bucket.ks.empty() && bucket.ks.front().first == 0),
            "the ks of bucket ", bucket.bucket, " must begin at step 0");
    first_piece.push_back(first_piece.back() + static_cast<std::size_t>(bucket.pieces));
  }
  Require(first_piece.back() == pieces_.size(), "the buckets must have ", pieces_.size(),
          " pieces, got ", first_piece.back());
  buckets_ = std::move(buckets);
  first_piece_ = std::move(first_piece);
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (std::size_t i = first_piece_[bucket]; i < first_piece_[bucket + 1]; ++i) {
      places_[i].bucket = bucket;
      places_[i].owes = true;
    }
  }
}

void StepDriver::Reorder(const std::vector<int>& order) {
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "buckets cannot be reordered while gradients are in flight");
  std::vector<std::size_t> wanted(order.begin(), order.end());
  std::vector<std::size_t> sorted = wanted, own = order_;
  std::sort(sorted.begin(), sorted.end());
  std::sort(own.begin(), own.end());
  Require(sorted == own, "an order must have each of the ", own.size(), " buckets once");
  order_ = std::move(wanted);
}

void StepDriver::GoOnAfter(std::int64_t steps) {
  Require(steps >= 0, "steps must be at least 0, got ", steps);
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "steps cannot be counted anew while gradients are in flight");
  steps_ = steps;
  for (Place& place : places_) place.owes = true;
}

std::int64_t StepDriver::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

void StepDriver::Begin(Span<float> residual, Span<SelectionState> states, float decay) {
  const std::int64_t numel = places_.back().offset + pieces_.back().numel;
  const std::int64_t segments = places_.back().first_segment + pieces_.back().segments;
  Require(residual.size == numel, "residual must have ", numel, " elements, got ", residual.size);
  Require(std::isfinite(decay), "decay must be finite, got ", decay);
  Require(states.size == segments, "states must have ", segments, " rows, got ", states.size);
  bool early = false;
  {
    const std::lock_guard lock(mutex_);
    early = InStep();
    if (!early) {
      residual_ = residual;
      states_ = states;
      decay_ = decay;
      joined_.clear();
      for (Place& place : places_) place.arrived = 0;
    }
  }
  if (!early) return;
  const std::string reason = "a step was begun before the last one had ended";
  Cancel(reason);
  Throw(ErrorKind::kExchangeFailed, reason);
}

bool StepDriver::Launch(int piece, const std::vector<GradView>& gradients, Done done) {
  Require(0 <= piece && piece < static_cast<int>(places_.size()), "piece must lie in [0, ",
          places_.size(), "), got ", piece);
  const auto number = static_cast<std::size_t>(piece);
  const std::int64_t numel =
      std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradView& one) { return sum + one.numel; });
  Require(numel == pieces_[number].numel, "piece ", piece, " must have ", pieces_[number].numel,
          " elements, got ", numel);
  bool twice = false, passes = false, owes = false;
  float scale = 1;
  {
    const std::lock_guard lock(mutex_);
    Require(residual_.data != nullptr, "piece ", piece, " came before its step");
    Place& here = places_[number];
    if (here.arrived == 0) here.arrived = SteadySeconds();
    const DrivenBucket& bucket = buckets_[here.bucket];
    passes = bucket.passes();
    owes = here.owes;
    scale = bucket.scale;
    twice = here.taken;
    if (!passes && !twice) {
      here.taken = true;
      here.gradients = gradients;
      here.done = std::move(done);
      if (draining_) return false;
      draining_ = true;
    }
  }
  if (passes) {
    exchange_->Check();
    if (owes) Pass(number, gradients, scale);
    return true;
  }
  if (!twice) {
    Drain();
    return false;
  }
  const std::string reason = Concat("piece ", piece, " was handed over twice in one step");
  Cancel(reason);
  finisher_.Post([done = std::move(done), reason] {
    done(std::make_exception_ptr(Error(ErrorKind::kExchangeFailed, reason)));
  });
  return false;
}

/// What the residual holds goes with the gradients.
void StepDriver::Pass(std::size_t piece, const std::vector<GradView>& gradients, float scale) {
  Joined joined{piece, {}};
  Index offset = 0;
  for (const GradView& gradient : gradients) {
    cpu::JoinResidual(residual_.Sub(places_[piece].offset + offset, gradient.numel), decay_, scale,
                      offset, gradient, &joined.rest);
    offset += static_cast<Index>(gradient.numel);
  }
  const std::lock_guard lock(mutex_);
  joined_.push_back(std::move(joined));
}

bool StepDriver::HasAllOf(std::size_t bucket) const {
  const auto begin = places_.begin();
  return std::all_of(begin + static_cast<std::ptrdiff_t>(first_piece_[bucket]),
                     begin + static_cast<std::ptrdiff_t>(first_piece_[bucket + 1]),
                     [](const Place& place) { return place.taken; });
}

hvd_sparse::Launch StepDriver::LaunchOf(std::size_t bucket) const {
  const DrivenBucket& driven = buckets_[bucket];
  const std::size_t first = first_piece_[bucket], end = first_piece_[bucket + 1];
  hvd_sparse::Launch launch;
  std::int64_t numel = 0, segments = 0;
  for (std::size_t i = first; i < end; ++i) {
    const std::vector<GradView>& gradients = places_[i].gradients;
    launch.gradients.insert(launch.gradients.end(), gradients.begin(), gradients.end());
    numel += pieces_[i].numel;
    segments += pieces_[i].segments;
  }
  launch.residual = residual_.Sub(places_[first].offset, numel);
  launch.states = states_.Sub(places_[first].first_segment, segments);
  launch.decays.assign(launch.gradients.size(), decay_);
  const auto later = std::find_if(driven.ks.begin(), driven.ks.end(),
                                  [this](const auto& phase) { return phase.first > steps_; });
  launch.ks = std::prev(later)->second;
  launch.scale = driven.scale;
  launch.output_scale = driven.output_scale;
  return launch;
}

/// Starts all buckets whose turn it is. One thread at a time does that, so that the order holds;
/// others go on at once.
void StepDriver::Drain() {
  for (;;) {
    hvd_sparse::Launch launch;
    int bucket = 0;
    {
      const std::lock_guard lock(mutex_);
      while (next_ < buckets_.size() && buckets_[order_[next_]].passes()) ++next_;
      if (failure_ != nullptr || next_ == buckets_.size()) {
        draining_ = false;
        finisher_.Post([this] { Finish(); });
        return;
      }
      if (!HasAllOf(order_[next_])) {
        draining_ = false;
        break;
      }
      launch = LaunchOf(order_[next_]);
      bucket = buckets_[order_[next_]].bucket;
    }
    try {
      exchange_->Start(bucket, std::move(launch));
      finisher_.Post([this, bucket] { Watch(bucket); });
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
    FinishAfter(std::current_exception());
  }
}

/// Ends the step, with what failed first. The mutex is held. Whoever is draining sees it, too.
void StepDriver::FinishAfter(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
  if (!draining_) finisher_.Post([this] { Finish(); });
}

/// Waits for a bucket. Where the exchange ends meanwhile, so does the step: the pieces that are
/// still to come may wait for other ranks, and so never come.
void StepDriver::Watch(int bucket) {
  try {
    // An exchange that has ended throws, but not before it has left all memory alone.
    while (!exchange_->Wait(bucket, kWaitSlice)) {
    }
  } catch (const Error&) {
    const std::lock_guard lock(mutex_);
    FinishAfter(std::current_exception());
  }
}

/// After a Watch of every bucket that was started.
void StepDriver::Finish() {
  std::exception_ptr error;
  bool all = false, marks = false;
  {
    const std::lock_guard lock(mutex_);
    if (!InStep()) return;  // several have found out that the exchange has ended
    error = failure_;
    all = next_ == buckets_.size();
  }
  try {
    if (error == nullptr) {
      if (hooks_.exchanged) hooks_.exchanged();
      exchange_->Commit("");
    }
  } catch (const Error& raised) {
    marks = non_finite_ == NonFinite::kMark && raised.kind() == ErrorKind::kNonFinite;
    if (error == nullptr && !marks) error = std::current_exception();
  }
  std::vector<Done> done;
  {
    const std::lock_guard lock(mutex_);
    for (Place& place : places_) {
      if (marks) std::for_each(place.gradients.begin(), place.gradients.end(), PutNaN);
      if (place.done) done.push_back(std::move(place.done));
      place.taken = false;
      place.gradients.clear();
      place.done = nullptr;
    }
    if (all) ++steps_;
    next_ = 0;
    failure_ = nullptr;
  }
  for (const Done& one : done) one(error);
}

void StepDriver::End(Done done) {
  const auto end = [this, done = std::move(done)] {
    std::exception_ptr error;
    try {
      EndStep();
    } catch (const Error& raised) {
      exchange_->Fail(raised.what());
      error = std::current_exception();
    }
    done(error);
  };
  if (hooks_.step_ended) {
    finisher_.Post(end);
  } else {
    end();
  }
}

void StepDriver::EndStep() {
  StepTimes times;
  {
    const std::lock_guard lock(mutex_);
    for (const Joined& joined : joined_) {
      Place& place = places_[joined.piece];
      const Span<float> part = residual_.Sub(place.offset, pieces_[joined.piece].numel);
      std::fill(part.begin(), part.end(), 0.0f);
      for (const auto& [index, value] : joined.rest) part[index] = value;
      place.owes = !joined.rest.empty();
    }
    joined_.clear();
    residual_ = {};
    states_ = {};
    const bool exchanged = std::any_of(buckets_.begin(), buckets_.end(),
                                       [](const DrivenBucket& one) { return !one.passes(); });
    if (!exchanged) ++steps_;
    times = TakeTimes();
  }
  if (hooks_.step_ended) hooks_.step_ended(times);
}

StepTimes StepDriver::TakeTimes() {
  const double now = SteadySeconds();
  double first = now;
  for (const Place& place : places_) {
    if (place.arrived != 0) first = std::min(first, place.arrived);
  }
  StepTimes times;
  times.step = last_end_ == 0 ? kUnknown : now - last_end_;
  times.forward = last_end_ == 0 ? kUnknown : first - last_end_;
  for (const Place& place : places_) {
    times.ready.push_back(place.arrived == 0 ? kUnknown : place.arrived - first);
  }
  last_end_ = now;
  return times;
}

void StepDriver::Cancel(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!InStep()) return;
  }
  exchange_->Fail(reason);
  const std::lock_guard lock(mutex_);
  if (!InStep()) return;
  const std::string message = Concat("rank ", exchange_->Rank(), " ended the exchange: ", reason);
  FinishAfter(std::make_exception_ptr(Error(ErrorKind::kExchangeFailed, message)));
}

void StepDriver::Fail(const std::string& reason) {
  exchange_->Fail(reason);
  Cancel(reason);
}

bool StepDriver::InStep() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& one) { return one.taken; });
}

}  // namespace hvd_sparse

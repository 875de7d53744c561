#include "csrc/exchange/step_driver.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "csrc/base/error.h"
#include "csrc/kernels/kernels_for.h"

namespace hvd_sparse {
namespace {

constexpr double kWaitSlice = 1.0;  // seconds
constexpr char kNotFinite[] = "a sum over the ranks of gradients that travel dense is not finite";

}  // namespace

StepDriver::StepDriver(Exchange* exchange, std::vector<Piece> pieces,
                       std::vector<DrivenBucket> buckets, Hooks hooks, StepRules rules)
    : exchange_(exchange),
      hooks_(std::move(hooks)),
      rules_(rules),
      kernels_(KernelsFor(rules.device)),
      layout_(std::move(pieces)),
      places_(layout_.size()),
      timer_(layout_.size(), kernels_),
      passage_(layout_.size(), kernels_),
      sampler_(rules_.measure_every, kernels_) {
  CheckRules(rules_);
  layout_.Adopt(std::move(buckets));
}

void StepDriver::Replace(std::vector<DrivenBucket> buckets) {
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "buckets cannot be replaced while gradients are in flight");
  layout_.Adopt(std::move(buckets));
  passage_.LetAllOwe();
}

void StepDriver::Reorder(const std::vector<int>& order) {
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "buckets cannot be reordered while gradients are in flight");
  layout_.Reorder(order);
}

void StepDriver::GoOnAfter(std::int64_t steps) {
  Require(steps >= 0, "steps must be at least 0, got ", steps);
  const std::lock_guard lock(mutex_);
  Require(!InStep(), "steps cannot be counted anew while gradients are in flight");
  steps_ = steps;
  passage_.LetAllOwe();
}

bool StepDriver::Begin(Span<float> residual, Span<SelectionState> states, float decay,
                       Span<float> velocity, Origin origin, Span<float> room) {
  layout_.RequireFit({residual.size, states.size, velocity.size}, rules_.momentum > 0);
  Require(std::isfinite(decay), "decay must be finite, got ", decay);
  Require(origin.IsOn(rules_.device), "a step must lie on ", rules_.device.Name(), ", got ",
          origin.device.Name());
  bool early = false, looks = false;
  {
    const std::lock_guard lock(mutex_);
    early = InStep();
    if (!early) {
      Require(room.size == RoomOfStep(), "room must have ", RoomOfStep(), " elements, got ",
              room.size);
      begun_ = true;
      passed_ = 0;
      residual_ = residual;
      velocity_ = velocity;
      room_ = room;
      states_ = states;
      decay_ = decay;
      origin_ = origin;
      refused_ = false;
      sampler_.Begin(steps_);
      passage_.Begin(origin.stream);
      timer_.Begin(origin.stream);
      looks = LooksAtSums();
      sums_.Begin(layout_.Passing() + (rules_.others ? 1 : 0), looks);
    }
  }
  if (!early) return looks;
  const std::string reason = "a step was begun before the last one had ended";
  Cancel(reason);
  Throw(ErrorKind::kExchangeFailed, reason);
}

bool StepDriver::Launch(int piece, const std::vector<GradView>& gradients, Done done,
                        Origin origin) {
  Require(0 <= piece && piece < static_cast<int>(places_.size()), "piece must lie in [0, ",
          places_.size(), "), got ", piece);
  const auto number = static_cast<std::size_t>(piece);
  const std::int64_t numel =
      std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradView& one) { return sum + one.numel; });
  Require(numel == layout_.piece(number).numel, "piece ", piece, " must have ",
          layout_.piece(number).numel, " elements, got ", numel);
  bool twice = false, passes = false;
  Passage::Piece along;
  std::vector<GradView> kept = gradients;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    Require(begun_, "piece ", piece, " came before its step");
    Require(origin == origin_, "piece ", piece, " must come from the stream of its step, on ",
            origin_.device.Name(), "; got another one, on ", origin.device.Name());
    Place& here = places_[number];
    timer_.Arrived(number);
    passes = layout_.bucket_of(number).passes();
    if (passes) {
      along = PassageOf(number);
      const bool all = layout_.piece(number).segments > 0 && ++passed_ == layout_.Passing();
      // Else Finish waits for the sums.
      if (all && !layout_.Exchanges()) finisher_.Post([this] { WaitForSums(); });
    }
    twice = here.taken;
    if (!passes && !twice) {
      here.taken = true;
      here.gradients = std::move(kept);
      here.done = std::move(done);
      if (draining_) return false;
      draining_ = true;
    }
  }
  if (passes) {
    exchange_->Check();
    try {
      passage_.Join(along, gradients);
    } catch (...) {
      throw EndByCaught(Concat("piece ", piece));
    }
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

/// What goes with the gradients of a piece that passes.
Passage::Piece StepDriver::PassageOf(std::size_t piece) const {
  const StepLayout::Begin& begin = layout_.begin(piece);
  Passage::Piece along;
  along.number = piece;
  along.residual = residual_.Sub(begin.residual, layout_.piece(piece).owed());
  if (rules_.momentum > 0) {
    along.velocity = velocity_.Sub(begin.velocity, layout_.piece(piece).numel);
    along.next = room_.Sub(layout_.PassedBefore(piece), layout_.piece(piece).numel);
  }
  along.decay = decay_;
  along.momentum = rules_.momentum;
  along.scale = layout_.bucket_of(piece).scale;
  return along;
}

hvd_sparse::Launch StepDriver::LaunchOf(std::size_t bucket) const {
  const DrivenBucket& driven = layout_.bucket(bucket);
  const auto [first, end] = layout_.PiecesOf(bucket);
  hvd_sparse::Launch launch;
  std::int64_t numel = 0, segments = 0;
  for (std::size_t i = first; i < end; ++i) {
    const std::vector<GradView>& gradients = places_[i].gradients;
    launch.gradients.insert(launch.gradients.end(), gradients.begin(), gradients.end());
    numel += layout_.piece(i).numel;
    segments += layout_.piece(i).segments;
  }
  const StepLayout::Begin& begin = layout_.begin(first);
  launch.residual = residual_.Sub(begin.residual, numel);
  launch.states = states_.Sub(begin.state, segments);
  if (rules_.momentum > 0) launch.velocity = velocity_.Sub(begin.velocity, numel);
  launch.momentum = rules_.momentum;
  launch.decays.assign(launch.gradients.size(), decay_);
  launch.ks = driven.KsAt(steps_);
  launch.scale = driven.scale;
  launch.output_scale = driven.output_scale;
  launch.stream = origin_.stream;
  return launch;
}

/// Starts the bucket whose turn it is, and all of whose pieces are there.
void StepDriver::Start(std::size_t number) {
  hvd_sparse::Launch launch;
  {
    const std::lock_guard lock(mutex_);
    launch = LaunchOf(number);
  }
  sampler_.Starts(number, launch);
  const int bucket = layout_.bucket(number).bucket;
  const StreamHandle stream = launch.stream;
  exchange_->Start(bucket, std::move(launch));
  finisher_.Post([this, bucket, stream] { Watch(bucket, stream); });
  const std::lock_guard lock(mutex_);
  ++next_;
}

/// Starts all buckets whose turn it is. One thread at a time does that, so that the order holds;
/// others go on at once.
void StepDriver::Drain() {
  for (;;) {
    std::size_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      while (next_ < layout_.buckets() && layout_.bucket(layout_.at(next_)).passes()) ++next_;
      if (failure_ != nullptr || next_ == layout_.buckets()) {
        draining_ = false;
        finisher_.Post([this] { Finish(); });
        return;
      }
      number = layout_.at(next_);
      if (!HasAllOf(number)) {
        draining_ = false;
        break;
      }
    }
    try {
      Start(number);
    } catch (...) {
      const Error error = EndByCaught("the start of a bucket");
      const std::lock_guard lock(mutex_);
      if (failure_ == nullptr) failure_ = std::make_exception_ptr(error);
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

Error StepDriver::EndByCaught(const std::string& where) const {
  Error error = Caught(exchange_->Rank(), where);
  if (error.kind() != ErrorKind::kNonFinite) exchange_->EndBy(error);
  return error;
}

/// Ends the step, with what failed first. The mutex is held. Whoever is draining sees it, too.
void StepDriver::FinishAfter(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
  sums_.Interrupt();
  if (!draining_) finisher_.Post([this] { Finish(); });
}

/// Waits for a bucket. Where the exchange ends meanwhile, so does the step: the pieces that are
/// still to come may wait for other ranks, and so never come.
void StepDriver::Watch(int bucket, StreamHandle stream) {
  try {
    kernels_.Follow(nullptr);
    // An exchange that has ended throws, but not before it has left all memory alone.
    while (!exchange_->Wait(bucket, kWaitSlice, stream)) {
    }
  } catch (...) {
    const Error error = EndByCaught("the wait for a bucket");
    const std::lock_guard lock(mutex_);
    FinishAfter(std::make_exception_ptr(error));
  }
}

/// An exchange that ends meanwhile ends the wait, and so does the deadline.
void StepDriver::WaitForSums() {
  try {
    sums_.Await(limits_, [this] { exchange_->Check(); });
  } catch (...) {
    const Error error = EndByCaught("the wait for dense sums");
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) failure_ = std::make_exception_ptr(error);
  }
}

/// After a Watch of every bucket that was started.
void StepDriver::Finish() {
  std::exception_ptr error;
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    if (!InStep()) return;  // several have found out that the exchange has ended
    error = failure_;
    all = next_ == layout_.buckets();
  }
  if (error == nullptr) {
    WaitForSums();
    const std::lock_guard lock(mutex_);
    error = failure_;
  }
  try {
    if (error == nullptr) {
      if (hooks_.exchanged) hooks_.exchanged();
      exchange_->Commit(sums_.finite() ? "" : kNotFinite);
      if (!sampler_.empty() && hooks_.measured) hooks_.measured(sampler_.Complete());
    }
  } catch (...) {
    const Error raised = EndByCaught("the end of a step");
    error = std::make_exception_ptr(raised);
    if (raised.kind() == ErrorKind::kNonFinite) {
      Refuse();
      if (rules_.non_finite == NonFinite::kMark) error = MarkGradients();
    }
  }
  // An executor returns to the user when all its ops have, also those that form sums: and they may
  // wait for ever for a rank that is lost.
  if (error != nullptr && sums_.missing() == 0) exchange_->Acknowledge();
  std::vector<Done> done;
  {
    const std::lock_guard lock(mutex_);
    for (Place& place : places_) {
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
  sums_.Interrupt();  // all are there
  const auto end = [this, done = std::move(done)] {
    std::exception_ptr error;
    try {
      EndStep();
    } catch (...) {
      error = std::make_exception_ptr(EndByCaught("the end of a step"));
      exchange_->Acknowledge();  // all ops of the step are over
    }
    done(error);
  };
  if (hooks_.step_ended) {
    finisher_.Post(end);
  } else {
    end();
  }
}

/// What passed does not count; on all ranks.
void StepDriver::Refuse() {
  passage_.Refuse();
  const std::lock_guard lock(mutex_);
  refused_ = true;
}

/// Says of a step that does not count, and is no error, that it does not; returns what failed.
std::exception_ptr StepDriver::MarkGradients() {
  try {
    const std::lock_guard lock(mutex_);
    for (const Place& place : places_) PutNaN(place.gradients, origin_);
    return nullptr;
  } catch (...) {
    return std::make_exception_ptr(EndByCaught("the end of a step"));
  }
}

void StepDriver::EndStep() {
  const bool exchanges = layout_.Exchanges();
  if (!exchanges && !sums_.finite()) Refuse();
  bool refused = false;
  StepEnd ended;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    refused = refused_;
    if (!refused) passage_.Settle();
    begun_ = false;
    residual_ = velocity_ = room_ = {};
    states_ = {};
    if (!exchanges) ++steps_;
    ended = timer_.End();
  }
  if (refused && !exchanges && rules_.non_finite == NonFinite::kRefuse) {
    exchange_->Commit(kNotFinite);
  }
  if (hooks_.step_ended) hooks_.step_ended(ended);
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

}  // namespace hvd_sparse

#include "csrc/exchange/step_engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "csrc/comm/patience.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/cpu_kernels.h"

namespace hvd_sparse {

StepEngine::StepEngine(Exchange* exchange, std::vector<OpGradients> ops,
                       std::vector<DrivenBucket> buckets, StepRules rules, Progress progress)
    : exchange_(exchange),
      rules_(rules),
      kernels_(KernelsFor(rules.device)),
      progress_(progress ? std::move(progress) : [](bool) {}),
      layout_(std::move(ops)),
      op_states_(layout_.size()),
      timer_(layout_.size(), kernels_),
      dense_path_(layout_.size(), exchange->Size(), kernels_),
      sampler_(rules_.measure_every, kernels_) {
  layout_.Adopt(std::move(buckets));
  order_ = layout_.order();
}

void StepEngine::Replace(std::vector<DrivenBucket> buckets) {
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "buckets cannot be replaced while gradients are in flight");
  layout_.Adopt(std::move(buckets));
  order_ = layout_.order();
  dense_path_.MarkAllPending();
}

void StepEngine::Reorder(const std::vector<int>& order) {
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "buckets cannot be reordered while gradients are in flight");
  layout_.Reorder(order);
}

void StepEngine::ContinueAfter(std::int64_t steps, bool pending) {
  Require(steps >= 0, "steps must be at least 0, got ", steps);
  const std::lock_guard lock(mutex_);
  Require(!op_states_.Any(), "steps cannot be counted anew while gradients are in flight");
  steps_ = steps;
  dense_path_.Restore(pending);
}

std::int64_t StepEngine::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

void StepEngine::TimeSteps(bool wanted) {
  const std::lock_guard lock(mutex_);
  timer_.Time(wanted);
}

std::int64_t StepEngine::Room() const {
  const std::lock_guard lock(mutex_);
  return RoomFor(layout_, rules_);
}

bool StepEngine::Begin(const StepMemory& memory, const std::optional<std::set<int>>& ops) {
  exchange_->Check();
  {
    const std::lock_guard lock(mutex_);
    CheckMemory(memory, layout_, rules_);
    if (!op_states_.Any()) {
      order_ = ops ? layout_.OrderOf(*ops) : layout_.order();
      begun_ = true;
      sums_problem_.clear();
      memory_ = memory;
      op_states_.Begin();
      sampler_.Begin(steps_);
      dense_path_.Begin(memory.origin.stream, order_.size() == layout_.buckets());
      timer_.Begin(memory.origin.stream);
      check_finite_ = rules_.has_velocity || layout_.Exchanges() || dense_path_.AnyPending();
      return check_finite_;
    }
  }
  constexpr char reason[] = "a step was begun before the last one had ended";
  Cancel(reason);
  Throw(ErrorKind::kExchangeFailed, reason);
}

bool StepEngine::Launch(int op, const std::vector<GradView>& gradients,
                        const std::vector<float>& decays, Origin origin, Done done) {
  const std::size_t number = Checked(op);
  const std::int64_t numel =
      std::accumulate(gradients.begin(), gradients.end(), std::int64_t{0},
                      [](std::int64_t sum, const GradView& one) { return sum + one.numel; });
  Require(numel == layout_.op(number).numel, "op ", op, " must have ", layout_.op(number).numel,
          " elements, got ", numel);
  Require(decays.empty() || decays.size() == gradients.size(), "op ", op, " must have ",
          gradients.size(), " decays, got ", decays.size());
  bool is_dense = false, twice = false, starts = false;
  const bool throws = done == nullptr;
  DenseInFlight dense;
  std::vector<GradView> kept = gradients;
  std::vector<float> factors = decays;
  kernels_.Follow(nullptr);
  {
    const std::lock_guard lock(mutex_);
    Require(begun_, "op ", op, " came before its step");
    Require(origin == memory_.origin, "op ", op, " must come from the stream of its step, on ",
            memory_.origin.device.Name(), "; got another one, on ", origin.device.Name());
    Require(TakesPart(layout_.number_of(number)), "op ", op, " takes no part in this step");
    timer_.Arrived(number);
    if (factors.empty()) factors.assign(gradients.size(), memory_.decay);
    is_dense = layout_.bucket_of(number).is_dense();
    twice = is_dense
                ? !op_states_.SendDense(number)
                : !op_states_.Take(number, std::move(kept), std::move(factors), std::move(done));
    starts = !is_dense && !twice && !std::exchange(draining_, true);
    if (is_dense && !twice) {
      dense = DenseInFlightOf(number, std::move(factors), memory_, layout_, rules_);
    }
  }
  if (twice) {
    const std::string reason = Concat("op ", op, " was handed over twice in one step");
    Fail(reason);
    Throw(ErrorKind::kExchangeFailed, reason);
  }
  if (starts) Drain();
  if (!is_dense) {
    if (const std::exception_ptr failure = throws ? Failure() : nullptr) {
      std::rethrow_exception(failure);
    }
    return false;
  }
  exchange_->Check();
  try {
    dense_path_.Join(dense, gradients);
  } catch (...) {
    throw EndByCaught("op ", op);
  }
  return true;
}

void StepEngine::Summed(const std::vector<GradView>& sums) {
  bool check_finite = false;
  {
    const std::lock_guard lock(mutex_);
    check_finite = check_finite_;
  }
  SummedAs(!check_finite || std::all_of(sums.begin(), sums.end(), cpu::AllFinite));
}

void StepEngine::SummedAs(bool finite, std::string_view gradient) {
  const std::lock_guard lock(mutex_);
  if (finite || !check_finite_ || !sums_problem_.empty()) return;
  sums_problem_ =
      gradient.empty()
          ? "a sum over the ranks of gradients that are sent dense is not finite"
          : Concat("the sum of the gradients of '", gradient, "' over the ranks is not finite");
}

std::size_t StepEngine::Checked(int op) const {
  Require(0 <= op && op < static_cast<int>(op_states_.size()), "op must lie in [0, ",
          op_states_.size(), "), got ", op);
  return static_cast<std::size_t>(op);
}

/// Starts all buckets whose turn it is. One thread at a time does that, so that the order holds;
/// the others return at once.
void StepEngine::Drain() noexcept {
  for (;;) {
    std::size_t bucket = 0;
    {
      const std::lock_guard lock(mutex_);
      while (next_ < order_.size() && layout_.bucket(order_[next_]).is_dense()) ++next_;
      if (failure_ != nullptr || next_ == order_.size()) {
        draining_ = false;
        progress_(failure_ != nullptr);
        return;
      }
      bucket = order_[next_];
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
    FailWith(std::current_exception());
  }
}

bool StepEngine::HasAllOf(std::size_t bucket) const {
  const auto [first, end] = layout_.OpsOf(bucket);
  return op_states_.HasAll(first, end);
}

/// True if all ops of the step were handed over. The caller holds the mutex, as for TakesPart.
bool StepEngine::Complete() const {
  return std::all_of(order_.begin(), order_.end(), [this](std::size_t bucket) {
    const auto [first, end] = layout_.OpsOf(bucket);
    return op_states_.Complete(first, end);
  });
}

bool StepEngine::TakesPart(std::size_t bucket) const {
  return order_.size() == layout_.buckets() ||
         std::find(order_.begin(), order_.end(), bucket) != order_.end();
}

/// Starts the bucket whose turn it is, and all of whose ops are there.
void StepEngine::Start(std::size_t bucket) {
  hvd_sparse::Launch launch;
  {
    const std::lock_guard lock(mutex_);
    const auto [first, end] = layout_.OpsOf(bucket);
    launch = LaunchOf(bucket, op_states_.GradientsOf(first, end), op_states_.DecaysOf(first, end),
                      steps_, memory_, layout_, rules_);
    launch.ready = timer_.LastOf(first, end);
  }
  sampler_.Starts(bucket, launch);
  exchange_->Start(layout_.bucket(bucket).bucket, std::move(launch));
  const std::lock_guard lock(mutex_);
  ++next_;
  progress_(false);
}

bool StepEngine::AllStarted() const {
  const std::lock_guard lock(mutex_);
  return op_states_.Any() && !draining_ && (failure_ != nullptr || next_ == order_.size());
}

std::exception_ptr StepEngine::Failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool StepEngine::Wait(double seconds) {
  try {
    kernels_.Follow(nullptr);
    for (;;) {
      int bucket = DrivenBucket::kDense;
      StreamHandle stream = 0;
      {
        const std::lock_guard lock(mutex_);
        if (watched_ == next_) return true;
        bucket = layout_.bucket(order_[watched_]).bucket;
        stream = memory_.origin.stream;
      }
      if (bucket != DrivenBucket::kDense && !exchange_->Wait(bucket, seconds, stream)) return false;
      const std::lock_guard lock(mutex_);
      ++watched_;
    }
  } catch (...) {
    // Ops that are missing may depend on other ranks, and so never come.
    const Error error = EndByCaught("the wait for a bucket");
    const std::lock_guard lock(mutex_);
    FailWith(std::make_exception_ptr(error));
    throw error;
  }
}

bool StepEngine::WaitFor(const std::vector<int>& ops, double seconds) {
  std::set<int> buckets;
  StreamHandle stream = 0;
  {
    const std::lock_guard lock(mutex_);
    buckets = BucketsOf(ops);
    stream = memory_.origin.stream;
  }
  kernels_.Follow(nullptr);
  return std::all_of(buckets.begin(), buckets.end(), [&](int bucket) {
    return bucket == DrivenBucket::kDense || exchange_->Wait(bucket, seconds, stream);
  });
}

/// Returns the exchange's numbers of the buckets of some ops. The caller holds the mutex.
std::set<int> StepEngine::BucketsOf(const std::vector<int>& ops) const {
  std::set<int> buckets;
  for (const int op : ops) buckets.insert(layout_.bucket_of(Checked(op)).bucket);
  return buckets;
}

std::string StepEngine::Problem() const {
  const std::string problem = exchange_->Problem();
  const std::lock_guard lock(mutex_);
  return problem.empty() ? sums_problem_ : problem;
}

bool StepEngine::Commit(std::string_view refuse) {
  std::string problem;
  bool sums_are_finite = true;
  {
    const std::lock_guard lock(mutex_);
    Require(begun_ && (Complete() || !check_finite_) && watched_ == next_,
            "a step is committed once all its ops were handed over and have arrived");
    sums_are_finite = sums_problem_.empty();
    problem = sums_are_finite ? std::string(refuse) : sums_problem_;
  }
  try {
    kernels_.Follow(nullptr);
    exchange_->Commit(problem);
  } catch (...) {
    const Error error = EndByCaught("the end of a step");
    if (error.kind() != ErrorKind::kNonFinite) throw error;
    Refuse(sums_are_finite);
    if (rules_.non_finite == NonFinite::kMark) return false;
    throw error;
  }
  dense_path_.Settle();
  {
    const std::lock_guard lock(mutex_);
    NoteResidual(steps_ + 1);
  }
  EndStep(true);
  return true;
}

/// Ends a step that no rank applies.
void StepEngine::Refuse(bool sums_are_finite) {
  try {
    dense_path_.Refuse(sums_are_finite);
    const std::lock_guard lock(mutex_);
    if (rules_.non_finite == NonFinite::kMark) op_states_.Mark(memory_.origin);
  } catch (...) {
    throw EndByCaught("the end of a step");
  }
  EndStep(true);
}

void StepEngine::CommitPart(const std::vector<int>& ops) {
  std::set<int> buckets;
  std::string problem;
  bool is_dense = false;
  {
    const std::lock_guard lock(mutex_);
    buckets = BucketsOf(ops);
    is_dense = ops.empty() || buckets.count(DrivenBucket::kDense) > 0;
    Require(begun_ && (ops.empty() || Complete()),
            "a part of a step is committed once all ops of the step were handed over");
    Require(!is_dense || buckets.size() <= 1,
            "a part of a step must not have ops that are exchanged and ops that are sent dense");
    if (is_dense) problem = std::exchange(sums_problem_, {});
  }
  try {
    if (!is_dense) return exchange_->CommitBuckets({buckets.begin(), buckets.end()});
    exchange_->Check();
    for (const int op : ops) dense_path_.SettleOp(Checked(op), !problem.empty());
    if (!problem.empty()) {
      Throw(ErrorKind::kNonFinite, problem, ": no rank applies this sum",
            ops.empty() ? "" : ", and the residual keeps what was to be added to it");
    }
  } catch (...) {
    throw EndByCaught("the end of a bucket");
  }
}

/// Notes the norm of this rank's residual after a step, the one of that number from 1, if it is to
/// be noted: rarely, so that it costs nothing. The caller holds the mutex.
void StepEngine::NoteResidual(std::int64_t step) {
  constexpr std::int64_t kFirst = 64;
  const bool is_power_of_two = (step & (step - 1)) == 0;
  const Span<const float> residual = memory_.residual;
  if (step < kFirst || !is_power_of_two || !layout_.Exchanges() || residual.size == 0) return;
  kernels_.Follow(kernels_.EndOf(memory_.origin.stream).get());
  const auto [mean, stddev] = kernels_.ComputeMoments(residual);
  const double energy = static_cast<double>(residual.size) * (mean * mean + stddev * stddev);
  residual_norms_.emplace_back(step, std::sqrt(energy));
}

std::vector<std::pair<std::int64_t, double>> StepEngine::ResidualNorms() const {
  const std::lock_guard lock(mutex_);
  return residual_norms_;
}

std::vector<double> StepEngine::Came() const {
  const std::lock_guard lock(mutex_);
  return timer_.Came();
}

std::vector<BucketStats> StepEngine::Stats() const {
  const std::lock_guard lock(mutex_);
  std::vector<BucketStats> stats;
  for (std::size_t i = 0; i < layout_.buckets(); ++i) {
    const DrivenBucket& one = layout_.bucket(i);
    if (!one.is_dense() && TakesPart(i)) stats.push_back(exchange_->Stats(one.bucket));
  }
  return stats;
}

void StepEngine::TellAll(const std::exception_ptr& error) {
  for (Done& one : op_states_.released()) {
    if (one) std::exchange(one, nullptr)(error);
  }
}

StepEnd StepEngine::EndTimes() {
  kernels_.Follow(nullptr);
  const std::lock_guard lock(mutex_);
  return timer_.End();
}

/// Ends the step, unless it has ended; it counts if all ranks have taken it. One that does not
/// count, since the exchange has ended, stays open for the ops that are late: they get the error.
void StepEngine::EndStep(bool counts) {
  const std::lock_guard lock(mutex_);
  if (!begun_) return;
  op_states_.Release();
  next_ = watched_ = 0;
  failure_ = nullptr;
  if (!counts) return;
  begun_ = false;
  memory_ = {};
  ++steps_;
}

void StepEngine::Abandon() noexcept {
  try {
    while (!Wait(kWaitSlice)) {
    }
  } catch (...) {  // by the error that ended the exchange, which is known
  }
  exchange_->ReleaseMemory();
  EndStep(false);
}

Error StepEngine::EndBy(Error error) const {
  if (error.kind() != ErrorKind::kNonFinite) exchange_->EndBy(error);
  return error;
}

/// Fails the step, which ends with the first failure. A thread in Drain sees it, too. The caller
/// holds the mutex.
void StepEngine::FailWith(std::exception_ptr failure) noexcept {
  if (failure_ == nullptr) failure_ = std::move(failure);
  progress_(true);
}

void StepEngine::Cancel(std::string_view reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!op_states_.Any()) return;
  }
  exchange_->Fail(reason);
  const Error error = Described(ErrorKind::kExchangeFailed, "rank ", exchange_->Rank(),
                                " ended the exchange: ", reason);
  const std::lock_guard lock(mutex_);
  if (op_states_.Any()) FailWith(std::make_exception_ptr(error));
}

void StepEngine::Fail(std::string_view reason) noexcept {
  exchange_->Fail(reason);
  Cancel(reason);
}

}  // namespace hvd_sparse

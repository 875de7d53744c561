/// Ranks whose steps a driver runs on the CPU or on a GPU, with velocities: to compare applied
/// gradients, residuals and the samples of measured steps.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_MOVING_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_MOVING_RANKS_H_

#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/exchange/step_driver.h"
#include "tests/csrc/cuda/step_ranks.h"
#include "tests/csrc/meeting.h"

namespace hvd_sparse {

/// Three ops: one of two gradients, which is always exchanged; one that is exchanged first and
/// sent dense later; one that is always sent dense, and has only a velocity.
constexpr std::int64_t kOne = 1000, kTwo = 501, kEither = 6001, kAlways = 77;
constexpr std::int64_t kUnsent = kOne + kTwo + kEither, kMoving = kUnsent + kAlways;
constexpr float kDecay = 0.5f, kScale = 0.75f;
inline const std::vector<OpGradients> kOps = {{kOne + kTwo, 1}, {kEither, 1}, {kAlways, 0}};

/// The non-finite value of a step: none, in a gradient of the last rank, or in a dense sum.
enum class Bad { kNothing, kGradient, kSum };

/// The sparsifier, and options of the driver.
struct DriverJob {
  std::string sparsifier;
  float momentum = 0;  // 0: there are no velocities
  std::int64_t measure_every = 0;
  Route route = Route::kCalls;  // for several ranks on a GPU
  bool whole = false;           // gradients are whole numbers
  bool masks = true;            // the velocity of delivered entries becomes 0
};

/// Input and outcome of a step on one rank, for the ops that can be exchanged.
struct Account {
  std::vector<float> gradient, applied;
  RankState before, after;
};

class MovingRank {
 public:
  MovingRank(const std::shared_ptr<LoopbackWorld>& world, int rank, Device device,
             const DriverJob& job, const RankState& before, StepBits* seen)
      : job_(job),
        size_(world->size()),
        seen_(*seen),
        random_(29 + rank),
        exchange_(std::make_unique<DeviceLoopback>(world, rank), SelectOn::kCaller),
        origin_{device, 0},
        residual_(device, before.residual),
        velocity_(device, before.velocity),
        states_(before.states) {
    StepRules rules;
    rules.non_finite = NonFinite::kMark;
    rules.has_velocity = job.momentum > 0;
    rules.masks_velocity = job.masks;
    rules.measure_every = job.measure_every;
    rules.others = true;
    rules.device = device;
    StepDriver::Hooks hooks;
    hooks.measured = [this](const std::vector<StepSample>& samples) {
      for (const StepSample& one : samples) {
        seen_.Add(one.accumulated);
        seen_.Add(one.left);
        seen_.Add(one.applied);
        ++measured_;
      }
    };
    driver_ = std::make_unique<StepDriver>(&exchange_, kOps, Buckets(false), hooks, rules);
  }

  /// Lets op 1, which can be exchanged or sent dense, be sent dense from now on.
  void SendDense() {
    exchange_.ClearBuckets();
    driver_->engine().Replace(Buckets(true));
    either_is_dense_ = true;
  }

  Account Step(Bad bad = Bad::kNothing) {
    Drawn drawn = Draw(bad == Bad::kGradient && number() + 1 == size_);
    Account account{drawn.Exchangeable(), {}, kept(), {}};
    Begin(&drawn);
    std::vector<std::future<void>> done;
    for (const int op : {2, 1, 0}) done.push_back(Hand(op, &drawn));
    for (int summed = 0; summed < (either_is_dense_ ? 2 : 1); ++summed) {
      driver_->SummedAs(bad != Bad::kSum);
    }
    for (auto& future : done) EXPECT_NO_THROW(future.get());
    const bool by_devices = !origin_.device.IsCpu() && size_ > 1;
    for (const int bucket : exchanged_) {
      EXPECT_EQ(exchange_.Stats(bucket).route, by_devices ? job_.route : Route::kCalls);
    }
    std::promise<void> ended;
    driver_->End([&ended](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      ended.set_value();
    });
    ended.get_future().get();
    account.applied = drawn.Exchangeable();
    account.after = kept();
    if (bad == Bad::kNothing) {
      seen_.Add(account.applied);
      seen_.Add(drawn.always.Values());
    }
    seen_.Add(account.after.residual);
    seen_.Add(account.after.velocity);
    return account;
  }

  /// Runs a step whose ops are handed over once all ranks have begun it, and which rank 0 then
  /// ends, whatever has arrived by then.
  Account EndedStep(const std::vector<int>& ops, Meeting* begun) {
    Drawn drawn = Draw(false);
    Account account{drawn.Exchangeable(), {}, kept(), {}};
    Begin(&drawn);
    begun->Attend();
    std::vector<std::future<void>> done;
    for (const int op : ops) done.push_back(Hand(op, &drawn));
    if (number() == 0) driver_->engine().Cancel("a test wants it");
    for (auto& future : done) EXPECT_THROW(future.get(), Error);
    account.after = kept();
    return account;
  }

  int number() const { return exchange_.Rank(); }
  StepDriver& driver() { return *driver_; }
  RankState kept() { return {residual_.Values(), velocity_.Values(), states_}; }
  int measured() const { return measured_; }

 private:
  /// The gradients of a step.
  struct Drawn {
    Memory<float> one;
    Memory<double> two;
    Memory<Float16> either;
    Memory<float> always;
    Memory<float> room;

    /// Returns the values of all ops that can be exchanged.
    std::vector<float> Exchangeable() {
      std::vector<float> all = one.Values();
      for (const double value : two.Values()) all.push_back(static_cast<float>(value));
      for (const Float16 value : either.Values()) all.push_back(Widen(value));
      return all;
    }
  };

  Drawn Draw(bool is_bad) {
    const Device device = origin_.device;
    const std::vector<float> one = Random<float>(kOne);
    const std::vector<double> two = Random<double>(kTwo);
    std::vector<Float16> either = Random<Float16>(kEither);
    if (is_bad) either[7] = Narrow<Float16>(kInf);
    const std::vector<float> room(static_cast<std::size_t>(driver_->engine().Room()));
    return {{device, one},
            {device, two},
            {device, either},
            {device, Random<float>(kAlways)},
            {device, room}};
  }

  template <typename T>
  std::vector<T> Random(std::int64_t numel) {
    std::normal_distribution<float> gaussian;
    std::vector<T> values(static_cast<std::size_t>(numel));
    for (T& value : values) {
      const float drawn = gaussian(random_);
      value = Narrow<T>(job_.whole ? std::round(8 * drawn) : drawn);
    }
    return values;
  }

  void Begin(Drawn* drawn) {
    StepMemory memory{{residual_.data(), kUnsent}, states_, kDecay};
    memory.velocity = {velocity_.data(), job_.momentum > 0 ? kMoving : 0};
    memory.momentum = job_.momentum;
    memory.room = {drawn->room.data(), driver_->engine().Room()};
    memory.origin = origin_;
    driver_->Begin(memory);
  }

  std::vector<DrivenBucket> Buckets(bool either_is_dense) {
    const float average = 1.0f / static_cast<float>(size_);
    exchanged_.clear();
    const auto sparse = [&](const std::vector<std::int64_t>& numels, std::int64_t numel) {
      BucketSpec spec{"a bucket", numels, {numel}, {numel / 50}, job_.sparsifier, {}, "gtopk"};
      spec.device = origin_.device;
      exchanged_.push_back(exchange_.AddBucket(spec));
      return DrivenBucket{exchanged_.back(), kScale, average, {{0, spec.max_ks}}, 1};
    };
    const DrivenBucket dense{DrivenBucket::kDense, kScale, 1, {}, 1};
    const DrivenBucket first = sparse({kOne, kTwo}, kOne + kTwo);
    return {first, either_is_dense ? dense : sparse({kEither}, kEither), dense};
  }

  std::future<void> Hand(int op, Drawn* drawn) {
    const std::vector<GradView> gradients[] = {
        {{drawn->one.data(), kOne, DType::kFloat32}, {drawn->two.data(), kTwo, DType::kFloat64}},
        {{drawn->either.data(), kEither, DType::kFloat16}},
        {{drawn->always.data(), kAlways, DType::kFloat32}}};
    auto done = std::make_shared<std::promise<void>>();
    const auto tell = [done](std::exception_ptr error) {
      if (error) return done->set_exception(error);
      done->set_value();
    };
    if (driver_->Launch(op, gradients[op], tell, origin_)) done->set_value();
    return done->get_future();
  }

  const DriverJob job_;
  const int size_;
  StepBits& seen_;
  std::mt19937 random_;
  Exchange exchange_;
  const Origin origin_;
  Memory<float> residual_, velocity_;
  States states_;
  std::vector<int> exchanged_;  // bucket ids
  bool either_is_dense_ = false;
  int measured_ = 0;
  std::unique_ptr<StepDriver> driver_;
};

/// Runs `program` on each rank, which begins with the state in `before`, if any.
inline std::vector<StepBits> OnMovingRanks(int size, Device device, const DriverJob& job,
                                           const std::function<void(MovingRank&)>& program,
                                           const std::vector<RankState>& before = {}) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<StepBits> seen(static_cast<std::size_t>(size));
  const RankState nothing{std::vector<float>(kUnsent),
                          std::vector<float>(job.momentum > 0 ? kMoving : 0), States(2)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto number = static_cast<std::size_t>(rank);
      MovingRank one(world, rank, device, job, before.empty() ? nothing : before[number],
                     &seen[number]);
      program(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

/// Runs steps of all kinds: accepted ones, and ones refused for a gradient or a sum, before and
/// after an op is sent dense.
inline std::vector<Account> Train(MovingRank& rank) {
  std::vector<Account> steps;
  for (const Bad bad : {Bad::kNothing, Bad::kNothing, Bad::kGradient, Bad::kSum, Bad::kNothing}) {
    steps.push_back(rank.Step(bad));
  }
  rank.SendDense();
  for (const Bad bad : {Bad::kNothing, Bad::kSum, Bad::kNothing, Bad::kNothing}) {
    steps.push_back(rank.Step(bad));
  }
  return steps;
}

inline void ExpectTheBitsOfTheCpu(const DriverJob& job, const std::vector<int>& sizes = {1, 2, 3}) {
  for (const int size : sizes) {
    const std::vector<StepBits> of_cpu = OnMovingRanks(size, {}, job, Train);
    const std::vector<StepBits> of_gpu = OnMovingRanks(size, kGpu, job, Train);
    for (std::size_t rank = 0; rank < of_cpu.size(); ++rank) {
      EXPECT_TRUE(of_gpu[rank].bits == of_cpu[rank].bits) << "rank " << rank << " of " << size;
    }
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_MOVING_RANKS_H_

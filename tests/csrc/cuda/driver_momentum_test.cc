/// Steps of a driver on a GPU whose momentum is corrected, or which are measured: what is handed
/// out, what stays and what is told of them has the bits of the same steps on the CPU.

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/exchange/step_driver.h"
#include "tests/csrc/cuda/exchange_steps.h"

namespace hvd_sparse {
namespace {

/// A piece that is exchanged, of two gradients; one that is exchanged, and then passes; one that
/// always passes, and has a velocity alone.
constexpr std::int64_t kOne = 1000, kTwo = 501, kEither = 6001, kAlways = 77;
constexpr std::int64_t kOwed = kOne + kTwo + kEither, kMoving = kOwed + kAlways;
const std::vector<Piece> kPieces = {{kOne + kTwo, 1}, {kEither, 1}, {kAlways, 0}};

/// What is not finite in a step: nothing, a gradient of the last rank, or a dense sum.
enum class Bad { kNothing, kGradient, kSum };

/// How they are exchanged, and what is asked of the driver.
struct Job {
  std::string sparsifier;
  float momentum = 0;
  std::int64_t measure_every = 0;
  bool over_devices = false;  // merges happen there
};

std::unique_ptr<Communicator> Connect(const std::shared_ptr<LoopbackWorld>& world, int rank,
                                      const Job& job) {
  if (job.over_devices) return std::make_unique<DeviceLoopback>(world, rank);
  return std::make_unique<LoopbackCommunicator>(world, rank);
}

class RankOn {
 public:
  RankOn(const std::shared_ptr<LoopbackWorld>& world, int rank, Device device, const Job& job,
         Seen* seen)
      : job_(job),
        size_(world->size()),
        seen_(*seen),
        random_(29 + rank),
        exchange_(Connect(world, rank, job), SelectOn::kCaller),
        origin_{device, 0},
        residual_(device, std::vector<float>(kOwed)),
        velocity_(device, std::vector<float>(job.momentum > 0 ? kMoving : 0)) {
    StepRules rules;
    rules.non_finite = NonFinite::kMark;
    rules.momentum = job.momentum;
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
    driver_ = std::make_unique<StepDriver>(&exchange_, kPieces, Buckets(false), hooks, rules);
  }

  /// From now on the piece that may travel either way passes.
  void LetPass() {
    exchange_.ClearBuckets();
    driver_->Replace(Buckets(true));
    passes_ = true;
  }

  void Step(Bad bad = Bad::kNothing) {
    const bool is_last = exchange_.Rank() + 1 == size_;
    Memory<float> one(origin_.device, Random<float>(kOne));
    Memory<double> two(origin_.device, Random<double>(kTwo));
    std::vector<Float16> narrow = Random<Float16>(kEither);
    if (bad == Bad::kGradient && is_last) narrow[7] = Narrow<Float16>(kInf);
    Memory<Float16> either(origin_.device, narrow);
    Memory<float> always(origin_.device, Random<float>(kAlways));
    Memory<float> room(origin_.device,
                       std::vector<float>(static_cast<std::size_t>(driver_->Room())));
    driver_->Begin({residual_.data(), kOwed}, states_, 0.5f,
                   {velocity_.data(), job_.momentum > 0 ? kMoving : 0}, origin_,
                   {room.data(), driver_->Room()});
    std::vector<std::future<void>> done;
    done.push_back(Hand(2, {{always.data(), kAlways, DType::kFloat32}}));
    done.push_back(Hand(1, {{either.data(), kEither, DType::kFloat16}}));
    done.push_back(
        Hand(0, {{one.data(), kOne, DType::kFloat32}, {two.data(), kTwo, DType::kFloat64}}));
    for (int summed = 0; summed < (passes_ ? 2 : 1); ++summed) {
      driver_->SummedAs(bad != Bad::kSum);
    }
    for (auto& future : done) future.get();
    std::promise<void> ended;
    driver_->End([&ended](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      ended.set_value();
    });
    ended.get_future().get();
    if (bad == Bad::kNothing) {
      seen_.Add(one.Values());
      seen_.Add(two.Values());
      seen_.Add(either.Values());
      seen_.Add(always.Values());
    }
    seen_.Add(residual_.Values());
    seen_.Add(velocity_.Values());
  }

  StepDriver& driver() { return *driver_; }
  int measured() const { return measured_; }

 private:
  template <typename T>
  std::vector<T> Random(std::int64_t numel) {
    std::normal_distribution<float> gaussian;
    std::vector<T> values(static_cast<std::size_t>(numel));
    for (T& value : values) value = Narrow<T>(gaussian(random_));
    return values;
  }

  std::vector<DrivenBucket> Buckets(bool either_passes) {
    const float average = 1.0f / static_cast<float>(size_);
    const auto sparse = [&](const std::vector<std::int64_t>& numels, std::int64_t numel) {
      BucketSpec spec{"a bucket", numels, {numel}, {numel / 50}, job_.sparsifier, {}, "gtopk"};
      spec.device = origin_.device;
      return DrivenBucket{exchange_.AddBucket(spec), 0.75f, average, {{0, spec.max_ks}}, 1};
    };
    const DrivenBucket passing{DrivenBucket::kPasses, 0.75f, 1, {}, 1};
    const DrivenBucket first = sparse({kOne, kTwo}, kOne + kTwo);
    return {first, either_passes ? passing : sparse({kEither}, kEither), passing};
  }

  std::future<void> Hand(int piece, const std::vector<GradView>& gradients) {
    auto done = std::make_shared<std::promise<void>>();
    const bool passed = driver_->Launch(
        piece, gradients,
        [done](std::exception_ptr error) {
          EXPECT_EQ(error, nullptr);
          done->set_value();
        },
        origin_);
    if (passed) done->set_value();
    return done->get_future();
  }

  const Job job_;
  const int size_;
  Seen& seen_;
  std::mt19937 random_;
  Exchange exchange_;
  const Origin origin_;
  Memory<float> residual_, velocity_;
  std::vector<SelectionState> states_{2};
  bool passes_ = false;
  int measured_ = 0;
  std::unique_ptr<StepDriver> driver_;
};

std::vector<Seen> OnRanks(int size, Device device, const Job& job,
                          const std::function<void(RankOn&)>& program) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<Seen> seen(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RankOn one(world, rank, device, job, &seen[static_cast<std::size_t>(rank)]);
      program(one);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

/// Steps of all kinds: that count, that are refused for a gradient or a sum, before and after a
/// piece travels dense.
void Train(RankOn& rank) {
  for (const Bad bad : {Bad::kNothing, Bad::kNothing, Bad::kGradient, Bad::kSum, Bad::kNothing}) {
    rank.Step(bad);
  }
  rank.LetPass();
  for (const Bad bad : {Bad::kNothing, Bad::kSum, Bad::kNothing, Bad::kNothing}) rank.Step(bad);
}

void ExpectTheBitsOfTheCpu(const Job& job) {
  for (const int size : {1, 2, 3}) {
    const std::vector<Seen> of_cpu = OnRanks(size, {}, job, Train);
    const std::vector<Seen> of_gpu = OnRanks(size, kGpu, job, Train);
    for (std::size_t rank = 0; rank < of_cpu.size(); ++rank) {
      EXPECT_TRUE(of_gpu[rank].bits == of_cpu[rank].bits) << "rank " << rank << " of " << size;
    }
  }
}

class DriverMomentumOnDevice : public CudaTest {
 protected:
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }
};

TEST_F(DriverMomentumOnDevice, StepsHaveTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu({"gaussian", 0.5f});
}

TEST_F(DriverMomentumOnDevice, StepsWhoseBlocksAreMergedOnDevicesHaveTheBitsOfTheCpu) {
  ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "auto", 1);
  ExpectTheBitsOfTheCpu({"top_k", 0.5f, 0, true});
}

TEST_F(DriverMomentumOnDevice, WhatIsMeasuredHasTheBitsOfTheCpu) {
  ExpectTheBitsOfTheCpu({"gaussian", 0, 1});
  ExpectTheBitsOfTheCpu({"gaussian", 0.5f, 2});
}

TEST_F(DriverMomentumOnDevice, AStepIsMeasuredWhereThatWasAskedForAndItCounts) {
  OnRanks(2, kGpu, {"gaussian", 0.5f, 2}, [](RankOn& rank) {
    for (const int buckets : {2, 2, 2, 2, 4, 4}) {  // steps 0, 4 are measured, 2 is refused
      rank.Step(rank.driver().steps() == 2 ? Bad::kGradient : Bad::kNothing);
      EXPECT_EQ(rank.measured(), buckets);
    }
  });
}

TEST_F(DriverMomentumOnDevice, RoomIsNeededForWhatPasses) {
  OnRanks(1, kGpu, {"gaussian", 0.5f}, [](RankOn& rank) {
    EXPECT_EQ(rank.driver().Room(), kAlways);
    rank.LetPass();
    EXPECT_EQ(rank.driver().Room(), kEither + kAlways);
  });
}

}  // namespace
}  // namespace hvd_sparse

/// Ranks that exchange a bucket step by step, by their CPUs or from device to device, to be
/// compared.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_STEP_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_STEP_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/exchange/exchange.h"
#include "tests/csrc/cuda/device_loopback.h"
#include "tests/csrc/cuda/exchange_steps.h"
#include "tests/csrc/cuda/states.h"

namespace hvd_sparse {

/// Returns a bucket of two gradients, float32 and another type, cut by segments elsewhere; one
/// segment is empty.
inline BucketSpec StepSpecOf(Device device, const std::string& sparsifier = "gaussian",
                             const std::string& collective = "gtopk") {
  BucketSpec spec{"a bucket", {301, 700}, {400, 0, 1, 600}, {120, 0, 1, 150},
                  sparsifier, {},         collective};
  if (sparsifier == "gaussian") spec.sparsifier_options = {{"refresh", 3}};
  if (sparsifier == "hard_threshold") spec.sparsifier_options = {{"threshold", 2}};
  spec.device = device;
  return spec;
}

/// A rank's state between two steps, which a framework saves.
struct RankState {
  std::vector<float> residual, velocity;  // velocity: zeros unless momentum is corrected
  States states;
};

/// The outcome of a step on one rank.
struct SeenStep {
  std::vector<std::uint32_t> gradients, residual, velocity;  // bits
  States states;
  std::string refused;  // the reason if the step was refused
  BucketStats stats;
};

/// Options of a run.
struct StepRun {
  int steps = 3;
  double output_scale = 0;                                // 0: the average
  float momentum = 0;                                     // 0: momentum is not corrected
  std::vector<RankState> before;                          // by rank; empty: zeros
  std::function<std::vector<std::int64_t>(int step)> ks;  // otherwise max_ks
  /// Changes the gradients of a rank before a step.
  std::function<void(int rank, int step, std::vector<float>* first, std::vector<float>* second)>
      alter;
};

/// One rank and its memory.
template <typename T>
class SteppingRank {
 public:
  SteppingRank(std::shared_ptr<LoopbackWorld> world, int rank, const BucketSpec& spec,
               const RankState& before)
      : world_(std::move(world)), rank_(rank), spec_(spec), random_(17 + rank) {
    Begin(before);
  }

  SeenStep Step(const StepRun& run, int step) {
    const std::vector<std::int64_t>& numels = spec_.gradient_numels;
    std::vector<float> singles = Drawn(numels[0]), others = Drawn(numels[1]);
    if (run.alter) run.alter(rank_, step, &singles, &others);
    std::vector<T> narrow;
    for (const float value : others) narrow.push_back(Narrow<T>(value));
    Memory<float> first(spec_.device, singles);
    Memory<T> second(spec_.device, narrow);
    Launch launch;
    launch.gradients = {{first.data(), numels[0], DType::kFloat32},
                        {second.data(), numels[1], kDTypeOf<T>}};
    launch.residual = {residual_->data(), spec_.Numel()};
    if (run.momentum > 0) launch.velocity = {velocity_->data(), spec_.Numel()};
    launch.momentum = run.momentum;
    launch.states = states_;
    launch.ks = run.ks ? run.ks(step) : spec_.max_ks;
    launch.decays = {1.0f, 0.5f};
    launch.scale = 0.75f;
    const float average = 1.0f / static_cast<float>(world_->size());
    launch.output_scale = run.output_scale > 0 ? static_cast<float>(run.output_scale) : average;
    exchange_->Start(bucket_, std::move(launch));
    while (!exchange_->Wait(bucket_, 1.0)) {
    }
    SeenStep seen;
    seen.stats = exchange_->Stats(bucket_);
    try {
      exchange_->Commit("");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNonFinite) << error.what();
      seen.refused = error.what();
    }
    for (const float value : first.Values()) seen.gradients.push_back(FloatBits(value));
    for (const T value : second.Values()) seen.gradients.push_back(FloatBits(Widen(value)));
    for (const float value : residual_->Values()) seen.residual.push_back(FloatBits(value));
    for (const float value : velocity_->Values()) seen.velocity.push_back(FloatBits(value));
    seen.states = states_;
    return seen;
  }

  RankState kept() { return {residual_->Values(), velocity_->Values(), states_}; }

 private:
  void Begin(const RankState& before) {
    residual_ = std::make_unique<Memory<float>>(spec_.device, before.residual);
    velocity_ = std::make_unique<Memory<float>>(spec_.device, before.velocity);
    states_ = before.states;
    exchange_ = std::make_unique<Exchange>(std::make_unique<DeviceLoopback>(world_, rank_),
                                           SelectOn::kCaller);
    bucket_ = exchange_->AddBucket(spec_);
  }

  std::vector<float> Drawn(std::int64_t numel) {
    std::normal_distribution<float> gaussian;
    std::vector<float> values(static_cast<std::size_t>(numel));
    for (float& value : values) value = gaussian(random_);
    return values;
  }

  const std::shared_ptr<LoopbackWorld> world_;
  const int rank_;
  const BucketSpec spec_;
  std::mt19937 random_;
  States states_;
  std::unique_ptr<Memory<float>> residual_, velocity_;
  std::unique_ptr<Exchange> exchange_;
  int bucket_ = 0;
};

/// Runs the steps and returns them by rank; `kept`, if given, receives each rank's final state.
template <typename T>
std::vector<std::vector<SeenStep>> RunSteps(int size, const BucketSpec& spec, const StepRun& run,
                                            std::vector<RankState>* kept = nullptr) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::vector<SeenStep>> seen(static_cast<std::size_t>(size));
  if (kept != nullptr) kept->resize(static_cast<std::size_t>(size));
  const std::vector<float> zeros(static_cast<std::size_t>(spec.Numel()));
  const RankState nothing{zeros, zeros, States(spec.segment_numels.size())};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SteppingRank<T> stepping(world, rank, spec, run.before.empty() ? nothing : run.before[rank]);
      for (int step = 0; step < run.steps; ++step) {
        seen[rank].push_back(stepping.Step(run, step));
      }
      if (kept != nullptr) (*kept)[rank] = stepping.kept();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

/// Returns the cause of a refusal, without what the residuals keep.
inline std::string CauseOf(const std::string& reason) {
  return reason.substr(0, reason.find(": no rank"));
}

/// Returns the CPU's reason to refuse a step as devices report it: they merge two causes into one.
inline std::string AsDevicesTell(std::string reason) {
  const std::string known = "holds NaN or Inf";
  const std::size_t at = reason.find(known);
  if (at == std::string::npos) return reason;
  return reason.replace(at, known.size(), known + ", or exceeds float32's range (3.4e38)");
}

/// Compares the runs. Gradients of a refused step are not compared: they are unspecified.
inline void ExpectSameBits(const std::vector<std::vector<SeenStep>>& on_device,
                           const std::vector<std::vector<SeenStep>>& on_cpu) {
  for (std::size_t rank = 0; rank < on_cpu.size(); ++rank) {
    for (std::size_t step = 0; step < on_cpu[rank].size(); ++step) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      const SeenStep &one = on_device[rank][step], &other = on_cpu[rank][step];
      EXPECT_EQ(CauseOf(one.refused), AsDevicesTell(CauseOf(other.refused)));
      EXPECT_TRUE(!one.refused.empty() || one.gradients == other.gradients);
      EXPECT_TRUE(one.residual == other.residual);
      EXPECT_TRUE(one.velocity == other.velocity);
      EXPECT_TRUE(SameStates(one.states, other.states));
      EXPECT_EQ(one.stats.route, Route::kRounds);
      EXPECT_EQ(other.stats.route, Route::kCalls);
      EXPECT_EQ(one.stats.asked, other.stats.asked);
      EXPECT_EQ(one.stats.step, other.stats.step);
      if (!one.refused.empty()) continue;
      EXPECT_EQ(one.stats.selected, other.stats.selected);
      EXPECT_EQ(one.stats.reduced, other.stats.reduced);
    }
  }
}

/// Compares steps whose blocks go from device to device with those on the CPU.
template <typename T>
void ExpectTheBitsOfTheCpu(int size, const StepRun& run, double slack = 1,
                           const std::string& collective = "gtopk") {
  BucketSpec on_device = StepSpecOf(kGpu, "gaussian", collective),
             on_cpu = StepSpecOf({}, "gaussian", collective);
  on_device.collective_options.slack = on_cpu.collective_options.slack = slack;
  ExpectSameBits(RunSteps<T>(size, on_device, run), RunSteps<T>(size, on_cpu, run));
}

inline void ExpectTheBitsOfTheCpuForAnyNumberOfRanks() {
  for (int size = 2; size <= 8; ++size) {
    SCOPED_TRACE(size);
    StepRun run;
    run.steps = size == 3 ? 3 : 1;
    size % 2 == 0 ? ExpectTheBitsOfTheCpu<float>(size, run)
                  : ExpectTheBitsOfTheCpu<BFloat16>(size, run, 1.7);
  }
}

/// Compares steps with momentum, one of which is refused.
inline void ExpectTheBitsOfTheCpuWithMomentum() {
  for (const int size : {2, 3, 6}) {
    SCOPED_TRACE(size);
    StepRun run;
    run.steps = 4;
    run.momentum = 0.9f;
    run.alter = [](int rank, int step, std::vector<float>* first, std::vector<float>*) {
      if (step == 2 && rank == 1) (*first)[3] = kInf;
    };
    size == 3 ? ExpectTheBitsOfTheCpu<float>(size, run, 1.7)
              : ExpectTheBitsOfTheCpu<BFloat16>(size, run);
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_STEP_RANKS_H_

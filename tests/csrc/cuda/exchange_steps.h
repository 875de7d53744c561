/// Steps of an exchange with gradients on the CPU or on a GPU, to be compared.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_EXCHANGE_STEPS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_EXCHANGE_STEPS_H_

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/device_loopback.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {

constexpr int kSteps = 3, kBadStep = 1;
constexpr std::int64_t kFirst = 1501, kSecond = 6000, kNumel = kFirst + kSecond;

inline BucketSpec SpecOf(Device device, const std::string& sparsifier,
                         const std::string& collective, WireFormat wire) {
  BucketSpec spec{"a bucket", {kFirst, kSecond}, {1000, 1, kNumel - 1001}, {40, 1, 200}, sparsifier,
                  {},         collective};
  if (sparsifier == "hard_threshold") spec.sparsifier_options = {{"threshold", 4}};
  spec.wire = wire;
  spec.device = device;
  return spec;
}

/// Memory that the exchange works on, on the CPU or on a device.
template <typename T>
class Memory {
 public:
  Memory(Device device, const std::vector<T>& values) : values_(values) {
    if (!device.IsCpu()) on_device_ = std::make_unique<DeviceArray<T>>(values);
  }
  T* data() { return on_device_ == nullptr ? values_.data() : on_device_->data(); }
  std::vector<T> Values() { return on_device_ == nullptr ? values_ : on_device_->Values(); }

 private:
  std::vector<T> values_;
  std::unique_ptr<DeviceArray<T>> on_device_;
};

/// The results of one rank's steps, as bits.
struct StepBits {
  std::vector<std::uint32_t> bits;
  int refused = 0;
  std::vector<std::string> rounds;  // names of the rounds of all steps

  /// Returns the number of steps whose gTop-k went over `network`.
  int Over(const std::string& network) const {
    return static_cast<int>(std::count(rounds.begin(), rounds.end(), "gtopk, over " + network));
  }

  template <typename T>
  void Add(const std::vector<T>& values) {
    for (const T value : values) bits.push_back(FloatBits(Widen(value)));
  }
};

/// Runs one rank with two gradients, of float32 and T; in step kBadStep, the last rank's gradient
/// is not finite.
template <typename T>
StepBits RunRank(std::shared_ptr<LoopbackWorld> world, int rank, const BucketSpec& spec) {
  Exchange exchange(std::make_unique<DeviceLoopback>(world, rank), SelectOn::kCaller);
  const int bucket = exchange.AddBucket(spec);
  std::mt19937 random(91 + rank);
  std::normal_distribution<float> gaussian;
  Memory<float> residual(spec.device, std::vector<float>(kNumel));
  std::vector<SelectionState> states(3);
  StepBits seen;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> singles(kFirst);
    for (float& value : singles) value = gaussian(random);
    std::vector<T> others(kSecond);
    for (T& value : others) value = Narrow<T>(4 * gaussian(random));
    if (step == kBadStep && rank == world->size() - 1) others[7] = Narrow<T>(kInf);
    Memory<float> first(spec.device, singles);
    Memory<T> second(spec.device, others);
    Launch launch;
    launch.gradients = {{first.data(), kFirst, DType::kFloat32},
                        {second.data(), kSecond, kDTypeOf<T>}};
    launch.residual = {residual.data(), kNumel};
    launch.states = states;
    launch.ks = spec.max_ks;
    launch.decays = {1.0f, 0.5f};
    launch.output_scale = 1.0f / static_cast<float>(world->size());
    exchange.Start(bucket, launch);
    while (!exchange.Wait(bucket, 1.0)) {
    }
    for (const RoundTimes& round : exchange.Stats(bucket).rounds) {
      seen.rounds.push_back(round.name);
    }
    try {
      exchange.Commit("");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNonFinite) << error.what();
      ++seen.refused;
    }
    if (step != kBadStep) {
      seen.Add(first.Values());
      seen.Add(second.Values());
    }
    seen.Add(residual.Values());
  }
  return seen;
}

template <typename T>
std::vector<StepBits> RunRanks(int size, const BucketSpec& spec) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<StepBits> seen(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { seen[rank] = RunRank<T>(world, rank, spec); });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

inline void ExpectSameBits(const std::vector<StepBits>& one, const std::vector<StepBits>& other) {
  for (std::size_t rank = 0; rank < one.size(); ++rank) {
    EXPECT_EQ(one[rank].refused, 1);
    EXPECT_EQ(other[rank].refused, 1);
    EXPECT_TRUE(one[rank].bits == other[rank].bits) << "rank " << rank;
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_EXCHANGE_STEPS_H_

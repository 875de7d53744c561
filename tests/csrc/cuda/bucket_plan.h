/// Buckets of several segments and gradients for tests, and their steps on the device and on the
/// CPU.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PLAN_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PLAN_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/step/device_exchange.h"
#include "csrc/exchange/bucket.h"
#include "tests/csrc/cuda/bucket_specs.h"
#include "tests/csrc/cuda/device_blocks.h"
#include "tests/csrc/cuda/states.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {

/// A gradient of a bucket.
struct GradientPlan {
  std::int64_t numel;
  DType type = DType::kFloat32;
  float decay = 1;
};

struct BucketPlan {
  std::vector<SegmentPlan> segments;
  std::vector<GradientPlan> gradients;
  double slack = 1, refresh = 32;
  float scale = 1, output_scale = 1;
  float momentum = 0;  // used if there is a velocity

  std::int64_t numel() const { return OnDevice().Numel(); }

  std::vector<std::int64_t> ks() const {
    std::vector<std::int64_t> ks;
    for (const auto& segment : segments) ks.push_back(segment.max_k);
    return ks;
  }

  BucketSpec OnDevice() const {
    std::vector<std::int64_t> numels;
    for (const auto& gradient : gradients) numels.push_back(gradient.numel);
    return SpecOf(segments, std::move(numels), slack, refresh);
  }

  BucketSpec OnCpu(const std::string& sparsifier) const {
    BucketSpec spec = OnDevice();
    spec.sparsifier = sparsifier;
    if (sparsifier != "gaussian") spec.sparsifier_options.clear();
    return spec;
  }
};

using Bytes = std::vector<std::uint8_t>;

template <typename T>
Bytes InType(const float* values, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count) * sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = Narrow<T>(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

/// Returns the gradients of a bucket as bytes, each in its number type.
inline std::vector<Bytes> InTypes(const BucketPlan& plan, const std::vector<float>& values) {
  std::vector<Bytes> all;
  const float* begin = values.data();
  for (const auto& [numel, type, decay] : plan.gradients) {
    const auto narrow = type == DType::kFloat64    ? InType<double>
                        : type == DType::kFloat16  ? InType<Float16>
                        : type == DType::kBFloat16 ? InType<BFloat16>
                                                   : InType<float>;
    all.push_back(narrow(begin, numel));
    begin += numel;
  }
  return all;
}

template <typename Memory>
std::vector<GradView> ViewsOf(const BucketPlan& plan, const std::vector<Memory>& memory) {
  std::vector<GradView> views;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    views.push_back({memory[i], plan.gradients[i].numel, plan.gradients[i].type});
  }
  return views;
}

/// Returns a launch over gradients in `memory`, which also receive the result.
inline cuda::DeviceLaunch LaunchOf(const BucketPlan& plan, const std::vector<void*>& memory,
                                   const std::vector<std::int64_t>& ks, Span<float> residual,
                                   SelectionState* states) {
  cuda::DeviceLaunch launch;
  launch.residual = residual;
  launch.gradients = launch.outputs = ViewsOf(plan, memory);
  for (const auto& gradient : plan.gradients) launch.decays.push_back(gradient.decay);
  launch.scale = plan.scale;
  launch.output_scale = plan.output_scale;
  launch.momentum = plan.momentum;
  launch.ks = ks;
  launch.states = {states, static_cast<std::int64_t>(ks.size())};
  return launch;
}

/// One rank's memory after a step.
struct AfterStep {
  std::vector<float> residual, velocity;
  std::vector<Bytes> outputs;
  std::vector<SelectionState> states;
  std::int64_t selected = 0, reduced = 0;  ///< entries
  bool is_refused = false;
  cuda::DeviceBlockHeader header;  ///< on the device only
};

/// One rank's memory before its first step.
struct Before {
  std::vector<float> residual, velocity;  ///< velocity: empty unless momentum is corrected
  std::vector<SelectionState> states;
};

/// A rank that runs its steps on the device.
class RankOnDevice {
 public:
  RankOnDevice(const BucketPlan& plan, const Before& before, cuda::DeviceTransport* transport,
               std::uint32_t id = 0)
      : plan_(plan),
        exchange_(plan.OnDevice(), id, transport),
        residual_(before.residual),
        velocity_(before.velocity, transport->Rank() % 2),  // every second one is unaligned
        states_(before.states) {
    exchange_.ClearBlocks(nullptr);
  }

  AfterStep Step(const std::vector<float>& gradients, const std::vector<std::int64_t>& ks) {
    std::vector<std::unique_ptr<DeviceArray<std::uint8_t>>> arrays;
    std::vector<void*> memory;
    for (const Bytes& bytes : InTypes(plan_, gradients)) {
      const std::int64_t shift = arrays.size() % 3 == 1 ? 8 : 0;  // one in three is unaligned
      arrays.push_back(std::make_unique<DeviceArray<std::uint8_t>>(bytes, shift));
      memory.push_back(arrays.back()->data());
    }
    cuda::DeviceLaunch launch = LaunchOf(plan_, memory, ks, residual_.span(), states_.data());
    if (velocity_.span().size > 0) launch.velocity = velocity_.span();
    exchange_.Run(launch, nullptr);
    cuda::PinnedArray<cuda::DeviceBlockHeader> fetched(1);
    exchange_.Fetch(fetched.data(), nullptr);
    cuda::Check(cudaDeviceSynchronize(), "finish");
    AfterStep after;
    after.header = fetched[0];
    after.residual = residual_.Values();
    after.velocity = velocity_.Values();
    for (const auto& array : arrays) after.outputs.push_back(array->Values());
    after.states = states_.Values();
    after.selected = BlockOnCpu(exchange_.selected()).header.count;
    after.reduced = after.header.count;
    after.is_refused = after.header.IsRefused();
    return after;
  }

  /// Forgets all thresholds.
  void Forget() { states_.Assign(std::vector<SelectionState>(plan_.segments.size())); }

 private:
  const BucketPlan plan_;
  cuda::DeviceExchange exchange_;
  DeviceArray<float> residual_, velocity_;
  DeviceArray<SelectionState> states_;
};

/// Like RankOnDevice, but on the CPU.
class RankOnCpu {
 public:
  RankOnCpu(const BucketPlan& plan, const Before& before, Communicator* comm,
            const std::string& sparsifier)
      : plan_(plan), comm_(*comm), bucket_(0, plan.OnCpu(sparsifier)), has_(before) {}

  AfterStep Step(const std::vector<float>& gradients, const std::vector<std::int64_t>& ks) {
    AfterStep after;
    after.outputs = InTypes(plan_, gradients);
    std::vector<void*> memory;
    for (Bytes& bytes : after.outputs) memory.push_back(bytes.data());
    Launch launch;
    launch.gradients = ViewsOf(plan_, memory);
    launch.residual = has_.residual;
    if (!has_.velocity.empty()) launch.velocity = has_.velocity;
    launch.momentum = plan_.momentum;
    launch.states = has_.states;
    launch.ks = ks;
    for (const auto& gradient : plan_.gradients) launch.decays.push_back(gradient.decay);
    launch.scale = plan_.scale;
    launch.output_scale = plan_.output_scale;
    bucket_.Validate(launch);
    bucket_.Select(launch, comm_.Rank(), CpuKernels());
    bucket_.step().Reduce(comm_, CpuKernels(), nullptr);
    after.is_refused = !bucket_.verdict().IsFinite() || bucket_.overflows() > 0;
    after.is_refused ? bucket_.step().PutBack(CpuKernels()) : bucket_.step().Commit();
    after.residual = has_.residual;
    after.velocity = has_.velocity;
    after.states = has_.states;
    after.selected = bucket_.stats().selected;
    after.reduced = bucket_.stats().reduced;
    return after;
  }

  void Forget() { has_.states.assign(has_.states.size(), {}); }

 private:
  const BucketPlan plan_;
  Communicator& comm_;
  Bucket bucket_;
  Before has_;
};

inline std::vector<float> Gaussians(std::int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = gaussian(random);
  return values;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_PLAN_H_

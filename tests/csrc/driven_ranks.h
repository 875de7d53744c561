/// Ranks that run steps through a driver, op by op.

#ifndef HVD_SPARSE_TESTS_CSRC_DRIVEN_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_DRIVEN_RANKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/step_driver.h"
#include "tests/csrc/meeting.h"

namespace hvd_sparse {

constexpr std::int64_t kNumel = 64;
constexpr int kOps = 4;

/// Numbers of ops by bucket; negative if the ops are sent dense.
using Layout = std::vector<int>;

/// A rank with kOps ops. K is everything in the first step, and then 1 per op. Where there are
/// velocities, their momentum is 0.5.
struct DrivenRank {
  DrivenRank(const std::shared_ptr<LoopbackWorld>& world, int rank, const Layout& layout,
             StepDriver::Hooks hooks = {}, StepRules rules = {})
      : DrivenRank(std::make_unique<LoopbackCommunicator>(world, rank), layout, std::move(hooks),
                   rules) {}

  DrivenRank(std::unique_ptr<Communicator> comm, const Layout& layout, StepDriver::Hooks hooks = {},
             StepRules rules = {})
      : rules(rules),
        velocity(rules.has_velocity ? kNumel * kOps : 0, 0.0f),
        exchange(std::move(comm), SelectOn::kCaller) {
    driver = std::make_unique<StepDriver>(&exchange,
                                          std::vector<OpGradients>(kOps, OpGradients{kNumel, 1}),
                                          Buckets(layout), std::move(hooks), rules);
  }

  std::vector<DrivenBucket> Buckets(const Layout& layout) {
    std::vector<DrivenBucket> buckets;
    for (const int ops : layout) {
      if (ops < 0) {
        buckets.push_back({DrivenBucket::kDense, 1, 1, {}, -ops});
        continue;
      }
      const std::vector<std::int64_t> numels(static_cast<std::size_t>(ops), kNumel);
      const std::vector<std::int64_t> ones(static_cast<std::size_t>(ops), 1);
      const int bucket =
          exchange.AddBucket({"bucket", numels, numels, numels, "top_k", {}, "gtopk"});
      buckets.push_back({bucket, 1, 1, {{0, numels}, {1, ones}}, ops});
    }
    return buckets;
  }

  void Begin() {
    room.assign(static_cast<std::size_t>(driver->engine().Room()), 0.0f);
    driver->Begin(Memory());
  }

  StepMemory Memory() {
    StepMemory memory{residual, states, 1, velocity, {}, room};
    memory.momentum = 0.5f;
    return memory;
  }

  /// Like Begin, but waits until all ranks have begun, so that ending the step ends it everywhere.
  void BeginTogether(Meeting* begun) {
    Begin();
    begun->Attend();
  }

  /// The outcome of a launch: true if the op is sent dense, otherwise a future of its result.
  struct Handed {
    bool sent_dense = false;
    std::future<void> done;
  };

  Handed Hand(int op) {
    auto done = std::make_shared<std::promise<void>>();
    const bool sent_dense = driver->Launch(op, {{Gradient(op).data(), kNumel, DType::kFloat32}},
                                           [done](std::exception_ptr error) {
                                             if (error) return done->set_exception(error);
                                             done->set_value();
                                           });
    return {sent_dense, done->get_future()};
  }

  std::future<void> Launch(int op) { return Hand(op).done; }

  /// Reports to the driver that the framework has summed an op that is sent dense.
  void Sum(int op) { driver->Summed({{Gradient(op).data(), kNumel, DType::kFloat32}}); }

  void End() {
    std::promise<void> ended;
    driver->End([&ended](std::exception_ptr error) {
      if (error) return ended.set_exception(error);
      ended.set_value();
    });
    ended.get_future().get();
  }

  /// Sets all gradients to ones.
  void Fill() {
    for (auto& gradient : gradients) gradient.assign(kNumel, 1.0f);
  }

  std::vector<float>& Gradient(int op) { return gradients[static_cast<std::size_t>(op)]; }

  double Unsent() const {
    double sum = 0;
    for (const float value : residual) sum += value;
    return sum;
  }

  const StepRules rules;
  std::vector<float> velocity, room;
  Exchange exchange;
  std::vector<std::vector<float>> gradients{kOps, std::vector<float>(kNumel, 1.0f)};
  std::vector<float> residual = std::vector<float>(kNumel * kOps, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(kOps);
  std::unique_ptr<StepDriver> driver;
};

/// Runs a program on each of `size` thread ranks.
inline void OnRanks(int size, const Layout& layout, const std::function<void(DrivenRank&)>& program,
                    StepRules rules = {}) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      DrivenRank one(world, rank, layout, {}, rules);
      program(one);
    });
  }
  for (auto& thread : threads) thread.join();
}

inline const Layout kOneByOne = {1, 1, 1, 1};

/// Returns the kind of the error that a future holds.
inline ErrorKind KindOf(std::future<void> done) {
  try {
    done.get();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_DRIVEN_RANKS_H_

/// Ranks that run steps through a driver, piece by piece.

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
constexpr int kPieces = 4;

/// Numbers of pieces by bucket; negative if the pieces pass.
using Layout = std::vector<int>;

/// A rank with kPieces pieces. K is everything in the first step, and then 1 per piece.
struct DrivenRank {
  DrivenRank(const std::shared_ptr<LoopbackWorld>& world, int rank, const Layout& layout,
             StepDriver::Hooks hooks = {}, StepRules rules = {})
      : DrivenRank(std::make_unique<LoopbackCommunicator>(world, rank), layout, std::move(hooks),
                   rules) {}

  DrivenRank(std::unique_ptr<Communicator> comm, const Layout& layout, StepDriver::Hooks hooks = {},
             StepRules rules = {})
      : rules(rules),
        velocity(rules.momentum > 0 ? kNumel * kPieces : 0, 0.0f),
        exchange(std::move(comm), SelectOn::kCaller) {
    driver = std::make_unique<StepDriver>(&exchange, std::vector<Piece>(kPieces, Piece{kNumel, 1}),
                                          Buckets(layout), std::move(hooks), rules);
  }

  std::vector<DrivenBucket> Buckets(const Layout& layout) {
    std::vector<DrivenBucket> buckets;
    for (const int pieces : layout) {
      if (pieces < 0) {
        buckets.push_back({DrivenBucket::kPasses, 1, 1, {}, -pieces});
        continue;
      }
      const std::vector<std::int64_t> numels(static_cast<std::size_t>(pieces), kNumel);
      const std::vector<std::int64_t> ones(static_cast<std::size_t>(pieces), 1);
      const int bucket =
          exchange.AddBucket({"bucket", numels, numels, numels, "top_k", {}, "gtopk"});
      buckets.push_back({bucket, 1, 1, {{0, numels}, {1, ones}}, pieces});
    }
    return buckets;
  }

  void Begin() {
    room.assign(static_cast<std::size_t>(driver->Room()), 0.0f);
    driver->Begin({residual, states, 1, velocity, {}, room});
  }

  /// Like Begin, but waits until all ranks have begun, so that ending the step ends it everywhere.
  void BeginTogether(Meeting* begun) {
    Begin();
    begun->Attend();
  }

  /// The outcome of a launch: true if the piece passed, otherwise a future of its result.
  struct Handed {
    bool passed = false;
    std::future<void> done;
  };

  Handed Hand(int piece) {
    auto done = std::make_shared<std::promise<void>>();
    const bool passed = driver->Launch(piece, {{Gradient(piece).data(), kNumel, DType::kFloat32}},
                                       [done](std::exception_ptr error) {
                                         if (error) return done->set_exception(error);
                                         done->set_value();
                                       });
    return {passed, done->get_future()};
  }

  std::future<void> Launch(int piece) { return Hand(piece).done; }

  /// Reports to the driver that the framework has summed a piece that passed.
  void Sum(int piece) { driver->Summed({{Gradient(piece).data(), kNumel, DType::kFloat32}}); }

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

  std::vector<float>& Gradient(int piece) { return gradients[static_cast<std::size_t>(piece)]; }

  double Owed() const {
    double sum = 0;
    for (const float value : residual) sum += value;
    return sum;
  }

  const StepRules rules;
  std::vector<float> velocity, room;
  Exchange exchange;
  std::vector<std::vector<float>> gradients{kPieces, std::vector<float>(kNumel, 1.0f)};
  std::vector<float> residual = std::vector<float>(kNumel * kPieces, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(kPieces);
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

/// Checking ranks refuse to exchange a bucket if they are about to do different things.

#include "csrc/exchange/intent.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 64;

/// A bucket, and the launch of a step with it.
struct Work {
  BucketSpec spec{"layer", {kNumel}, {32, 32}, {32, 32}, "top_k", {}, "gtopk"};
  std::vector<float> gradient = std::vector<float>(kNumel, 1.0f);
  std::vector<double> doubles = std::vector<double>(kNumel, 1.0);
  std::vector<float> residual = std::vector<float>(kNumel, 0.0f);
  std::vector<SelectionState> states = std::vector<SelectionState>(2);
  std::vector<std::int64_t> ks = {4, 4};
  bool as_doubles = false;
  std::string note = "rate .1";

  Launch Step() {
    Launch launch;
    launch.gradients = {as_doubles ? GradView{doubles.data(), kNumel, DType::kFloat64}
                                   : GradView{gradient.data(), kNumel, DType::kFloat32}};
    launch.residual = residual;
    launch.states = states;
    launch.ks = ks;
    launch.decays = {1.0f};
    return launch;
  }
};

/// Runs one step on each rank, the last one changed by `other`; returns the ranks' errors.
std::vector<std::string> ErrorsOf(int size, const std::function<void(Work*)>& other) {
  auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller, {},
                        true);
      Work work;
      if (rank == size - 1) other(&work);
      const int bucket = exchange.AddBucket(work.spec);
      exchange.Note(work.note);
      bool started = false;  // ranks may have disagreed before
      try {
        exchange.Start(bucket, work.Step());
        started = true;
        while (!exchange.Wait(bucket, 1.0)) {
        }
        exchange.Commit("");
        EXPECT_EQ(work.gradient[0], static_cast<float>(size));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kDisagreement);
        errors[static_cast<std::size_t>(rank)] = error.what();
        EXPECT_EQ(work.residual, std::vector<float>(kNumel, started ? 1.0f : 0.0f));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// A change on the last rank, and the two sides' words in the errors.
struct Difference {
  std::string name;
  std::function<void(Work*)> change;
  std::string ours, theirs;
};

const Difference kDifferences[] = {
    {"Bucket", [](Work* work) { work->spec.name = "another"; }, "'layer'", "'another'"},
    {"K", [](Work* work) { work->ks = {4, 5}; }, ", k 8,", ", k 9,"},
    {"Type", [](Work* work) { work->as_doubles = true; }, "64 float32", "64 float64"},
    {"Collective", [](Work* work) { work->spec.collective = "allgather"; }, "gtopk", "allgather"},
    {"Slack", [](Work* work) { work->spec.collective_options.slack = 2; }, "slack 1", "slack 2"},
    {"Wire", [](Work* work) { work->spec.wire.packed = true; }, "plain", "packed"},
    {"Note", [](Work* work) { work->note = "rate .2"; }, "rate .1", "rate .2"},
    {"LongNote", [](Work* work) { work->note = std::string(5000, 'x'); }, "rate .1", "xxxxxxxx"},
    {"Layout",
     [](Work* work) {
       work->spec.segment_numels = {16, 48};
       work->spec.max_ks = {16, 48};
     },
     "layout", "layout"},
    {"KsOfTheSameSum", [](Work* work) { work->ks = {5, 3}; }, "layout", "layout"},
};

class Intents : public testing::TestWithParam<Difference> {};

TEST_P(Intents, ThatDifferEndTheStepOnEveryRankWithBothSidesNamed) {
  for (const int size : {2, 3, 4, 7}) {
    const std::vector<std::string> errors = ErrorsOf(size, GetParam().change);
    const std::string last = Concat("rank ", size - 1, " ");
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("the ranks disagree: "), std::string::npos) << error;
      EXPECT_NE(error.find(last), std::string::npos) << error;
      EXPECT_NE(error.find("step 0, bucket 0 "), std::string::npos) << error;
      EXPECT_NE(error.find(GetParam().ours), std::string::npos) << error;
      EXPECT_NE(error.find(GetParam().theirs), std::string::npos) << error;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Intents, testing::ValuesIn(kDifferences),
                         [](const auto& test) { return test.param.name; });

TEST(Intent, OfEqualRanksLetsThemExchange) {
  for (const int size : {1, 2, 3, 4, 7}) {
    for (const std::string& error : ErrorsOf(size, [](Work*) {})) EXPECT_EQ(error, "");
  }
}

TEST(Intent, BeyondWhatIsShownStillCounts) {
  auto world = std::make_shared<LoopbackWorld>(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      LoopbackCommunicator comm(world, rank);
      const std::string intent = std::string(5000, 'x') + std::to_string(rank);
      EXPECT_THROW(RequireSameIntent(&comm, intent, "a test"), Error);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Intent, CountsTheStepsOfTheExchange) {
  auto world = std::make_shared<LoopbackWorld>(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Exchange exchange(std::make_unique<LoopbackCommunicator>(world, rank), SelectOn::kCaller, {},
                        true);
      Work work;
      std::string text;
      for (int step = 0; step < 4; ++step) {
        if (step == 2) exchange.ClearBuckets();  // a new plan does not reset the step
        const int bucket = step % 2 == 0 ? exchange.AddBucket(work.spec) : step / 2;
        if (step == 3) exchange.Note(Concat("I am rank ", rank));
        try {
          exchange.Start(bucket, work.Step());
          while (!exchange.Wait(bucket, 1.0)) {
          }
          exchange.Commit("");
        } catch (const Error& error) {
          text = error.what();
        }
      }
      EXPECT_NE(text.find("step 3, bucket 1 'layer'"), std::string::npos) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hvd_sparse

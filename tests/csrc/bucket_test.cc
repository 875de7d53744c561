/// A bucket whose gradients and segments do not coincide, alone and between ranks. Launches that do
/// not fit the bucket are refused.

#include "csrc/exchange/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/loopback_communicator.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using Sizes = std::vector<std::int64_t>;

BucketSpec Spec(const Sizes& gradients, const Sizes& segments, double density) {
  Sizes ks;
  for (const std::int64_t size : segments) {
    ks.push_back(static_cast<std::int64_t>(std::ceil(density * static_cast<double>(size))));
  }
  return {"a bucket", gradients, segments, ks, "top_k", {}, "allgather"};
}

/// The gradients of a bucket, their number types alternating, each with its own decay.
struct Memory {
  std::vector<std::vector<float>> singles;
  std::vector<std::vector<double>> doubles;
  std::vector<std::vector<Float16>> halves;
  std::vector<float> residual, accumulated;  // after error feedback: a plain loop
  std::vector<SelectionState> states;
  Launch launch;

  explicit Memory(const BucketSpec& spec) {
    const std::size_t count = spec.gradient_numels.size();
    singles.resize(count);
    doubles.resize(count);
    halves.resize(count);
    launch.scale = 0.5f;
    for (std::size_t g = 0; g < count; ++g) {
      const std::int64_t size = spec.gradient_numels[g];
      const float decay = g % 2 == 0 ? 1.0f : 0.25f;
      const auto seed = static_cast<int>(71 + g);
      launch.decays.push_back(decay);
      if (g % 3 == 0) Add(size, seed, decay, &singles[g]);
      if (g % 3 == 1) Add(size, seed, decay, &doubles[g]);
      if (g % 3 == 2) Add(size, seed, decay, &halves[g]);
    }
    states.resize(spec.segment_numels.size());
    launch.residual = residual;
    launch.states = states;
    launch.ks = spec.max_ks;
  }

  /// Returns element i of gradient g as written by the step.
  float Result(std::size_t g, std::int64_t i) const {
    if (g % 3 == 0) return singles[g][i];
    return g % 3 == 1 ? static_cast<float>(doubles[g][i]) : Widen(halves[g][i]);
  }

 private:
  template <typename T>
  void Add(std::int64_t size, int seed, float decay, std::vector<T>* gradient) {
    std::mt19937 random(seed);
    std::normal_distribution<float> gaussian;
    for (std::int64_t i = 0; i < size; ++i) {
      const float before = gaussian(random);
      gradient->push_back(Narrow<T>(gaussian(random)));
      residual.push_back(before);
      accumulated.push_back(decay * before + launch.scale * Widen(gradient->back()));
    }
    launch.gradients.push_back({gradient->data(), size, kDTypeOf<T>});
  }
};

/// Runs one rank; expects each accumulated value in the gradient or in the residual, and the k
/// largest of each segment in the gradient.
void ExpectExchanges(const Sizes& gradients, const Sizes& segments, double density) {
  const BucketSpec spec = Spec(gradients, segments, density);
  Memory memory(spec);
  Bucket bucket(0, spec);
  bucket.Validate(memory.launch);
  LoopbackCommunicator alone(std::make_shared<LoopbackWorld>(1), 0);
  bucket.Select(memory.launch, 0, CpuKernels());
  std::vector<float> left = memory.residual;
  bucket.step().Reduce(alone, CpuKernels(), nullptr);
  EXPECT_TRUE(bucket.verdict().IsFinite());

  std::vector<float> together = memory.residual;  // sums are exact: the parts do not overlap
  std::int64_t offset = 0;
  for (std::size_t g = 0; g < gradients.size(); ++g) {
    for (std::int64_t i = 0; i < gradients[g]; ++i) together[offset + i] += memory.Result(g, i);
    offset += gradients[g];
  }
  EXPECT_EQ(together, memory.accumulated);

  offset = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    std::int64_t taken = 0;
    float least = kInf, largest_left = 0;
    for (std::int64_t i = offset; i < offset + segments[s]; ++i) {
      if (left[i] == 0 && memory.accumulated[i] != 0) {
        ++taken;
        least = std::min(least, std::fabs(memory.accumulated[i]));
      }
      largest_left = std::max(largest_left, std::fabs(left[i]));
    }
    EXPECT_EQ(taken, spec.max_ks[s]) << "in segment " << s;
    EXPECT_GE(least, largest_left) << "in segment " << s;
    offset += segments[s];
  }

  bucket.step().PutBack(CpuKernels());
  EXPECT_TRUE(SameBits(memory.residual, memory.accumulated));
}

TEST(Bucket, SegmentsMayCutGradientsAndSpanThem) {
  ExpectExchanges({100}, {100}, 0.1);
  ExpectExchanges({100}, {30, 70}, 0.1);
  ExpectExchanges({30, 70}, {100}, 0.1);
  ExpectExchanges({10, 20, 70}, {25, 5, 50, 20}, 0.3);
  ExpectExchanges({0, 10, 0, 0, 20, 0}, {0, 5, 0, 25, 0, 0}, 0.3);
  ExpectExchanges({1, 1, 1}, {2, 1}, 1);
  ExpectExchanges({}, {}, 1);
  ExpectExchanges({0}, {0, 0}, 1);
}

TEST(Bucket, AnyCutsLoseNothing) {
  std::mt19937 random(72);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t numel = 1 + random() % 3000;
    const auto cuts = [&] {
      Sizes sizes;
      for (std::int64_t left = numel; left > 0;) {
        const std::int64_t wanted = random() % 4 == 0 ? 0 : 1 + random() % 900;
        sizes.push_back(std::min(left, wanted));
        left -= sizes.back();
      }
      return sizes;
    };
    ExpectExchanges(cuts(), cuts(), 0.1);
  }
}

TEST(Bucket, LargeSegmentsCutAnywhereWithAnyNumberOfThreads) {
  WithOneToThreeThreads(
      [] { ExpectExchanges({200000, 3, 70000, 100001}, {65536, 137, 250000, 54331}, 0.01); });
}

/// Runs some steps of a bucket on thread ranks, with integer-valued gradients, so that sums are
/// exact. Expects that every value was applied, alike on every rank, or is in a residual.
void ExpectNothingIsLostBetween(int ranks, const std::string& sparsifier,
                                const std::string& collective, int local_size = 1,
                                float momentum = 0) {
  SCOPED_TRACE(testing::Message() << ranks << " ranks, " << local_size << " on a node, "
                                  << sparsifier << ", " << collective);
  constexpr std::int64_t kNumel = 3000;
  BucketSpec spec = Spec({kNumel}, {1000, 2000}, 0.02);
  spec.sparsifier = sparsifier;
  if (sparsifier == "hard_threshold") spec.sparsifier_options = {{"threshold", 4}};
  spec.collective = collective;
  auto world = std::make_shared<LoopbackWorld>(ranks);
  std::vector<std::vector<float>> came_in(ranks), applied(ranks), left(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(81 + rank);
      LoopbackCommunicator comm(world, rank);
      Bucket bucket(0, spec, Nodes::Of(ranks, local_size).PlaceOf(rank, ranks));
      std::vector<SelectionState> states(2);
      std::vector<float> gradient(kNumel);
      came_in[rank] = applied[rank] = left[rank] = gradient;
      std::vector<float> velocity = gradient;
      for (int step = 0; step < 4; ++step) {
        for (std::int64_t i = 0; i < kNumel; ++i) {
          gradient[i] = static_cast<float>(static_cast<int>(random() % 11) - 5);
          came_in[rank][i] += gradient[i] + momentum * velocity[i];
        }
        Launch launch;
        launch.gradients = {{gradient.data(), kNumel, DType::kFloat32}};
        launch.residual = left[rank];
        launch.states = states;
        launch.ks = spec.max_ks;
        launch.decays = {1.0f};
        launch.momentum = momentum;
        if (momentum > 0) launch.velocity = velocity;
        bucket.Select(launch, rank, CpuKernels());
        bucket.step().Reduce(comm, CpuKernels(), nullptr);
        bucket.step().Commit();
        for (std::int64_t i = 0; i < kNumel; ++i) applied[rank][i] += gradient[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < ranks; ++rank) EXPECT_TRUE(SameBits(applied[rank], applied[0]));
  for (std::int64_t i = 0; i < kNumel; ++i) {
    float in = 0, out = applied[0][i];
    for (int rank = 0; rank < ranks; ++rank) {
      in += came_in[rank][i];
      out += left[rank][i];
    }
    ASSERT_EQ(in, out) << "entry " << i;
  }
}

TEST(Bucket, NothingIsLostBetweenRanks) {
  for (const std::string& sparsifier : SparsifierNames()) {
    for (const std::string& collective : CollectiveNames()) {
      for (const int ranks : {1, 2, 3, 5}) {
        ExpectNothingIsLostBetween(ranks, sparsifier, collective);
      }
    }
  }
}

TEST(Bucket, NothingIsLostWithMomentum) {
  for (const std::string& collective : CollectiveNames()) {
    for (const int ranks : {1, 2, 3, 5}) {
      ExpectNothingIsLostBetween(ranks, "top_k", collective, 1, 0.5f);
    }
    ExpectNothingIsLostBetween(6, "gaussian", collective, 2, 0.5f);
  }
}

TEST(Bucket, NothingIsLostBetweenRanksThatShareNodes) {
  for (const std::string& sparsifier : SparsifierNames()) {
    for (const std::string& collective : CollectiveNames()) {
      ExpectNothingIsLostBetween(3, sparsifier, collective, 3);
      ExpectNothingIsLostBetween(6, sparsifier, collective, 2);
    }
  }
}

TEST(Bucket, RefusesWhatDoesNotFitTogether) {
  const auto refused = [](const BucketSpec& spec) {
    try {
      const Bucket bucket(0, spec);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kInvalidArgument;
    }
    return false;
  };
  EXPECT_FALSE(refused(Spec({10}, {10}, 1)));
  EXPECT_TRUE(refused(Spec({10}, {9}, 1)));
  EXPECT_TRUE(refused(Spec({10}, {20, -10}, 1)));
  EXPECT_TRUE(refused(Spec({20, -10}, {10}, 1)));
  EXPECT_TRUE(refused(Spec({10}, {10}, 0)));
  EXPECT_TRUE(refused(Spec({10}, {10}, 1.1)));
  BucketSpec no_k = Spec({10}, {10}, 1);
  no_k.max_ks.clear();
  EXPECT_TRUE(refused(no_k));
  BucketSpec no_threshold = Spec({10}, {10}, 1);
  no_threshold.sparsifier = "hard_threshold";
  EXPECT_TRUE(refused(no_threshold));
  no_threshold.sparsifier_options = {{"threshold", 0.5}};
  EXPECT_FALSE(refused(no_threshold));
}

TEST(Bucket, RefusesBinaryValuesOfSeveralSegmentsOrOtherParts) {
  const auto binary = [](const std::vector<std::int64_t>& segments) {
    BucketSpec spec = Spec({10}, segments, 1);
    spec.sparsifier = "one_sign";
    spec.collective = "allgather";
    spec.wire.values = Values::kBinary;
    return spec;
  };
  const auto refusal = [](const BucketSpec& spec) {
    return std::string(Thrown([&] { const Bucket bucket(0, spec); }).what());
  };
  for (const std::vector<std::int64_t>& one : {std::vector<std::int64_t>{10}, {0, 10}, {10, 0}}) {
    EXPECT_NO_THROW(Bucket(0, binary(one)));
  }
  EXPECT_EQ(refusal(binary({4, 6})), "bucket 'a bucket': binary values take one segment, got 2");
  BucketSpec top_k = binary({10});
  top_k.sparsifier = "top_k";
  EXPECT_EQ(refusal(top_k),
            "bucket 'a bucket': binary values take the sparsifier 'one_sign', got 'top_k'");
  for (const char* collective : {"gtopk", "recursive_doubling", "shard_sum"}) {
    BucketSpec other = binary({10});
    other.collective = collective;
    EXPECT_EQ(
        refusal(other),
        std::string("bucket 'a bucket': binary values take the collective 'allgather', got '") +
            collective + "'");
  }
}

}  // namespace
}  // namespace hvd_sparse

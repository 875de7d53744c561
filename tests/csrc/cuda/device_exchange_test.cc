/// Steps that never leave the device have the bits of those on the CPU, and keep the same laws.

#include "csrc/cuda/device_exchange.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "csrc/collectives/collectives.h"
#include "csrc/kernels/half.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/cuda/device_blocks.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {
namespace {

using cuda::DeviceBlockHeader;
using Gradients = std::vector<std::vector<float>>;  // by rank

constexpr std::int64_t kNumel = 1500, kK = 40;
constexpr int kMostRanks = 8;

/// Whole numbers, of which the ranks have many indices and magnitudes in common.
Gradients WholeNumbers(int ranks, int seed) {
  std::mt19937 random(seed);
  Gradients gradients(static_cast<std::size_t>(ranks), std::vector<float>(kNumel));
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const int common = random() % 4 == 0 ? static_cast<int>(random() % 41) - 20 : 0;
    for (auto& gradient : gradients) {
      gradient[i] = static_cast<float>(common + static_cast<int>(random() % 9) - 4);
    }
  }
  return gradients;
}

/// What one rank has after a step.
template <typename T>
struct After {
  std::vector<float> residual;
  std::vector<T> output;
  Entries reduced;
  DeviceBlockHeader header;
};

/// Whether a step knows the threshold that the steps before have learned. Without one it takes the
/// exact top-k.
enum class Thresholds { kForgotten, kFollowed };

/// A rank on the device, from step to step.
template <typename T>
class RankOnDevice {
 public:
  RankOnDevice(const cuda::DeviceBucket& bucket, const std::vector<float>& residual, float scale,
               LoopbackTransport* transport, Thresholds thresholds = Thresholds::kForgotten)
      : exchange_(bucket, transport),
        residual_(residual),
        state_({SelectionState{}}),
        scale_(scale),
        thresholds_(thresholds) {}

  After<T> Step(const std::vector<float>& gradient) {
    std::vector<T> narrow;
    for (const float value : gradient) narrow.push_back(Narrow<T>(value));
    DeviceArray<T> on_device(narrow);
    if (thresholds_ == Thresholds::kForgotten) state_.Assign({SelectionState{}});
    const GradView view{on_device.data(), kNumel, kDTypeOf<T>};
    exchange_.Run({{view, 1, 1, residual_.span()}, state_.data(), view, scale_}, nullptr);
    DeviceArray<DeviceBlockHeader> fetched({DeviceBlockHeader{}});
    exchange_.Fetch(fetched.data(), nullptr);
    return {residual_.Values(), on_device.Values(), BlockOnCpu(exchange_.reduced()).entries,
            fetched.Values()[0]};
  }

 private:
  cuda::DeviceExchange exchange_;
  DeviceArray<float> residual_;
  DeviceArray<SelectionState> state_;
  const float scale_;
  const Thresholds thresholds_;
};

/// Steps on ranks that share a device: by rank and step.
template <typename T>
std::vector<std::vector<After<T>>> OnDevice(const Gradients& residuals,
                                            const std::vector<Gradients>& steps, double slack,
                                            float scale,
                                            Thresholds thresholds = Thresholds::kForgotten) {
  const auto size = static_cast<int>(residuals.size());
  std::vector<std::vector<After<T>>> after(residuals.size());
  OnDeviceRanks(size, [&](LoopbackTransport& transport) {
    const int r = transport.Rank();
    RankOnDevice<T> rank({kNumel, kK, slack}, residuals[r], scale, &transport, thresholds);
    for (const Gradients& gradients : steps) after[r].push_back(rank.Step(gradients[r]));
  });
  return after;
}

/// The same with the CPU's kernels and collective.
template <typename T>
std::vector<std::vector<After<T>>> OnCpu(const Gradients& residuals,
                                         const std::vector<Gradients>& steps, double slack,
                                         float scale) {
  const auto size = static_cast<int>(residuals.size());
  std::vector<std::vector<After<T>>> after(residuals.size());
  const auto& collective = FindCollective("gtopk");
  OnRanks(size, [&](Communicator& comm) {
    const int r = comm.Rank();
    std::vector<float> residual = residuals[r];
    for (const Gradients& gradients : steps) {
      std::vector<T> narrow;
      for (const float value : gradients[r]) narrow.push_back(Narrow<T>(value));
      const GradView view{narrow.data(), kNumel, kDTypeOf<T>};
      CpuKernels().Accumulate({view, 1, 1, residual});
      SparseBlock selected, reduced;
      selected.Reset(kK);
      const TopKCut cut = CpuKernels().FindTopK(residual, kK);
      selected.Finish(CpuKernels().TakeCut(residual, cut, 0, 0, &selected));
      reduced.CopyFrom(selected);
      CollectiveScratch scratch;
      CollectiveContext ctx{comm, CpuKernels(), scratch, kK, kK, "a bucket", kNumel, {slack}};
      collective.Run(&reduced, ctx);
      if (size > 1) CpuKernels().Settle(selected, reduced, residual);
      if (size == 1) MarkSurvived(&reduced);
      std::vector<std::pair<Index, float>> undo;
      CpuKernels().Scatter(reduced, scale, 0, view, residual, &undo,
                           1.0f / (scale * static_cast<float>(size)));
      after[r].push_back({residual, narrow, EntriesOf(reduced), {}});
    }
  });
  return after;
}

template <typename T>
void ExpectSame(const After<T>& actual, const After<T>& expected) {
  EXPECT_EQ(actual.reduced, expected.reduced);
  EXPECT_TRUE(SameBits(actual.residual, expected.residual));
  EXPECT_EQ(std::memcmp(actual.output.data(), expected.output.data(), sizeof(T) * kNumel), 0);
}

template <typename T>
void ExpectTheBitsOfTheCpu(double slack, float scale) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const Gradients residuals = WholeNumbers(ranks, 1);
    const std::vector<Gradients> steps = {WholeNumbers(ranks, 2), WholeNumbers(ranks, 3)};
    const auto on_device = OnDevice<T>(residuals, steps, slack, scale);
    const auto on_cpu = OnCpu<T>(residuals, steps, slack, scale);
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::size_t step = 0; step < steps.size(); ++step) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", step " << step);
        ExpectSame(on_device[rank][step], on_cpu[rank][step]);
        EXPECT_EQ(on_device[rank][step].header.count, kK);
        EXPECT_FALSE(on_device[rank][step].header.IsRefused());
      }
    }
  }
}

using CudaDeviceExchange = CudaTest;

TEST_F(CudaDeviceExchange, StepsHaveTheBitsOfTheCpu) { ExpectTheBitsOfTheCpu<float>(1, 1); }

TEST_F(CudaDeviceExchange, SoTheyHaveWithSlack) { ExpectTheBitsOfTheCpu<float>(1.7, 0.3f); }

TEST_F(CudaDeviceExchange, SoTheyHaveWithNarrowGradients) {
  ExpectTheBitsOfTheCpu<BFloat16>(1, 1.0f / 3);
}

/// Whole numbers, so sums are exact.
void ExpectNothingIsLost(int ranks, int steps, Thresholds thresholds) {
  SCOPED_TRACE(ranks);
  Gradients before = WholeNumbers(ranks, 4);
  std::vector<Gradients> gradients;
  for (int step = 0; step < steps; ++step) gradients.push_back(WholeNumbers(ranks, 5 + step));
  const auto after = OnDevice<float>(before, gradients, 1, 1, thresholds);
  for (std::size_t step = 0; step < gradients.size(); ++step) {
    const std::vector<float>& output = after[0][step].output;
    std::vector<float> total(kNumel), expected(kNumel);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(SameBits(after[rank][step].output, output));
      EXPECT_LE(after[rank][step].header.count, kK);
      for (std::int64_t i = 0; i < kNumel; ++i) {
        expected[i] += before[rank][i] + gradients[step][rank][i];
        total[i] += after[rank][step].residual[i];
      }
      before[rank] = after[rank][step].residual;
    }
    for (std::int64_t i = 0; i < kNumel; ++i) total[i] += output[i];
    EXPECT_EQ(total, expected);
    EXPECT_NE(output, std::vector<float>(kNumel));
  }
}

TEST_F(CudaDeviceExchange, NothingIsLostAndReplicasAreEqual) {
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    ExpectNothingIsLost(ranks, 2, Thresholds::kForgotten);
  }
}

TEST_F(CudaDeviceExchange, NothingIsLostWhileThresholdsAreFollowed) {
  for (const int ranks : {1, 3, 4}) ExpectNothingIsLost(ranks, 6, Thresholds::kFollowed);
}

// ---- Steps that are not applied -----------------------------------------------------------------

/// Whether a step has left the gradients alone, and the residuals with all that was finite.
void ExpectRefused(const Gradients& before, const Gradients& gradients,
                   const std::vector<std::vector<After<float>>>& after) {
  for (std::size_t rank = 0; rank < before.size(); ++rank) {
    std::vector<float> expected = before[rank];
    for (std::int64_t i = 0; i < kNumel; ++i) {
      if (std::isfinite(gradients[rank][i])) expected[i] += gradients[rank][i];
    }
    EXPECT_TRUE(SameBits(after[rank][0].residual, expected)) << "rank " << rank;
    EXPECT_TRUE(SameBits(after[rank][0].output, gradients[rank])) << "rank " << rank;
    EXPECT_TRUE(after[rank][0].header.IsRefused());
  }
}

TEST_F(CudaDeviceExchange, AGradientThatIsNotFiniteIsKnownToAllAndNothingIsApplied) {
  for (const int ranks : {1, 3, 6}) {
    for (const int bad : {0, ranks / 2, ranks - 1}) {
      SCOPED_TRACE(testing::Message() << "rank " << bad << " of " << ranks);
      const Gradients before = WholeNumbers(ranks, 7);
      std::vector<Gradients> steps = {WholeNumbers(ranks, 8), WholeNumbers(ranks, 9)};
      steps[0][bad][11] = kNan;
      steps[0][ranks - 1][900] = -kInf;
      const auto after = OnDevice<float>(before, steps, 1, 1);
      ExpectRefused(before, steps[0], after);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(after[rank][0].header.bad_rank, bad);
        EXPECT_EQ(after[rank][0].header.not_finite, 2u);
        EXPECT_FALSE(after[rank][1].header.IsRefused());  // the next step is a step like any other
      }
    }
  }
}

TEST_F(CudaDeviceExchange, ASumThatIsNotFiniteIsKnownToAllAndNothingIsApplied) {
  for (const int ranks : {2, 3, 4, 6}) {
    const Gradients before(static_cast<std::size_t>(ranks), std::vector<float>(kNumel));
    Gradients gradients = WholeNumbers(ranks, 10);
    gradients[0][77] = gradients[ranks - 1][77] = kMax;
    const auto after = OnDevice<float>(before, {gradients}, 1, 1);
    ExpectRefused(before, gradients, after);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(after[rank][0].header.flags, static_cast<std::uint32_t>(cuda::kSumNotFinite));
      EXPECT_EQ(after[rank][0].header.bad_rank, kNoRank);
    }
  }
}

TEST_F(CudaDeviceExchange, RanksThatDisagreeAllLearnOfIt) {
  for (const int ranks : {2, 5, 8}) {
    for (const int other : {0, ranks - 1}) {
      const Gradients before = WholeNumbers(ranks, 11), gradients = WholeNumbers(ranks, 12);
      std::vector<std::vector<After<float>>> after(static_cast<std::size_t>(ranks));
      OnDeviceRanks(ranks, [&](LoopbackTransport& transport) {
        const int r = transport.Rank();
        cuda::DeviceBucket bucket{kNumel, kK};
        bucket.id = r == other ? 1 : 0;
        RankOnDevice<float> rank(bucket, before[r], 1, &transport);
        after[r].push_back(rank.Step(gradients[r]));
      });
      ExpectRefused(before, gradients, after);
      for (const auto& of_rank : after) {
        EXPECT_EQ(of_rank[0].header.flags, static_cast<std::uint32_t>(cuda::kDisagree));
      }
    }
  }
}

TEST_F(CudaDeviceExchange, BadArgumentsAreRefused) {
  OnDeviceRanks(1, [](LoopbackTransport& transport) {
    EXPECT_THROW(cuda::DeviceExchange({10, 11}, &transport), Error);
    EXPECT_THROW(cuda::DeviceExchange({10, 1, 0.5}, &transport), Error);
    EXPECT_THROW(cuda::DeviceExchange({10, 1, kInf}, &transport), Error);
    cuda::DeviceExchange exchange({10, 1}, &transport);
    std::vector<float> memory(11);
    const Feedback feedback{{}, 1, 1, {memory.data(), 10}};
    EXPECT_THROW(exchange.Run({feedback, nullptr, {memory.data(), 11}, 1}, nullptr), Error);
    EXPECT_THROW(exchange.Run({feedback, nullptr, {memory.data(), 10}, 0}, nullptr), Error);
  });
}

}  // namespace
}  // namespace hvd_sparse

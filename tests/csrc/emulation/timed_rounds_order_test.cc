/// Timed rounds: where on the stream timing begins and ends, and the work of each round.

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/cuda/transport/transport_collectives.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

std::string seen;  // the stream's work and the CPU's waits

void Wait(cudaStream_t, const std::string&) { seen += 'w'; }

/// A transport whose messages take time.
class SlowTransport final : public DeviceTransport {
 public:
  static constexpr double kSeconds = 2e-3;

  int Rank() const override { return 0; }
  int Size() const override { return 2; }
  void Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t) override {
    ASSERT_EQ(out.size, 1);
    ASSERT_EQ(in.size, 1);
    EXPECT_EQ(out[0].peer, 1);
    EXPECT_EQ(in[0].peer, 1);
    EXPECT_EQ(out[0].bytes, 1000);
    EXPECT_EQ(in[0].bytes, 1000);
    EXPECT_NE(out[0].data, in[0].data);
    seen += 's';
    const double end = SteadySeconds() + kSeconds;
    while (SteadySeconds() < end) {
    }
  }
};

class TimedRoundsOrder : public testing::Test {
 protected:
  void SetUp() override {
    seen.clear();
    emulation::at_event = [](cudaStream_t, cudaEvent_t, bool waits) { seen += waits ? 'f' : 'e'; };
  }
  void TearDown() override { emulation::at_event = nullptr; }
};

TEST_F(TimedRoundsOrder, SwapsFollowEachOtherAndAreWaitedForOnce) {
  SlowTransport transport;
  const double begin = SteadySeconds();
  const std::vector<double> seconds = TimedSwaps(&transport, 1, 1000, 5, nullptr, &Wait);
  const double whole = SteadySeconds() - begin;
  EXPECT_EQ(seen, "sesesesesesew");
  ASSERT_EQ(seconds.size(), 5u);
  for (const double one : seconds) EXPECT_GE(one, SlowTransport::kSeconds);
  // Each is timed from the end of the previous one: the first swap overall is in none of them.
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  EXPECT_LE(sum + SlowTransport::kSeconds, whole);
}

TEST_F(TimedRoundsOrder, AMergeIsThatOfARound) {
  const int before = emulated_calls.launches, cleared = emulated_calls.clears;
  EXPECT_EQ(TimedMerges(0, 300, 2, &Wait).size(), 2u);
  EXPECT_EQ(seen, "eeew");
  EXPECT_EQ(emulated_calls.launches - before, 3 * 4);
  EXPECT_EQ(emulated_calls.clears - cleared, 3);
}

TEST_F(TimedRoundsOrder, ABlockGoesUpAndComesDownEachTime) {
  const int before = emulated_calls.copies;
  int looks = 0;
  EXPECT_EQ(TimedCopies(0, 300, 2, [&] { ++looks; }).size(), 2u);
  EXPECT_EQ(seen, "eee");  // marks that the CPU waits for, polling `looks` meanwhile
  EXPECT_GE(looks, 3);
  EXPECT_EQ(emulated_calls.copies - before, 3 * 6);  // header, indices and values, both ways
}

TEST_F(TimedRoundsOrder, NothingIsFreedThatAStreamStillUses) {
  SlowTransport transport;
  const int before = emulated_calls.waits;
  const auto lost = [](cudaStream_t, const std::string& what) {
    Throw(ErrorKind::kPeerLost, "in ", what);
  };
  const Error error = Thrown([&] { TimedSwaps(&transport, 1, 1000, 1, nullptr, lost); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(Says(error, "in swaps of 1000 bytes between devices")) << error.what();
  EXPECT_EQ(emulated_calls.waits - before, 1);
}

/// A transport whose messages fail, and may still be in flight.
class LostTransport final : public DeviceTransport {
 public:
  explicit LostTransport(bool holds_memory) : holds_memory_(holds_memory) {}

  int Rank() const override { return 0; }
  int Size() const override { return 2; }
  void Move(Span<const DeviceOut>, Span<const DeviceIn>, cudaStream_t) override {
    Throw(ErrorKind::kPeerLost, "rank 1 was lost");
  }
  bool HoldsMemory() const override { return holds_memory_; }

 private:
  const bool holds_memory_;
};

TEST_F(TimedRoundsOrder, NothingIsFreedThatAFailedMessageMayStillUse) {
  for (const bool holds_memory : {false, true}) {
    LostTransport transport(holds_memory);
    const int before = emulated_calls.frees;
    const Error error = Thrown([&] { TimedSwaps(&transport, 1, 1000, 1, nullptr, &Wait); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(emulated_calls.frees - before, holds_memory ? 0 : 2);
  }
}

}  // namespace
}  // namespace hvd_sparse::cuda

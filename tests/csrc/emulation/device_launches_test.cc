/// What a step that stays on the device asks of it: as many launches as it says, and nothing that
/// waits.

#include <gtest/gtest.h>

#include <vector>

#include "csrc/cuda/device_exchange.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {
namespace {

/// Notes what its rank asks of the device meanwhile, and takes it off.
class Uncounted final : public cuda::DeviceTransport {
 public:
  explicit Uncounted(LoopbackTransport* transport) : transport_(*transport) {}
  int Rank() const override { return transport_.Rank(); }
  int Size() const override { return transport_.Size(); }
  void Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                cudaStream_t stream) override {
    const EmulatedCalls before = emulated_calls;
    transport_.Exchange(peer, send, recv, bytes, stream);
    emulated_calls = before;
  }

 private:
  LoopbackTransport& transport_;
};

TEST(DeviceLaunches, AStepWaitsForNothingAndAllocatesNothing) {
  constexpr std::int64_t kNumel = 500, kK = 10;
  for (const int ranks : {1, 2, 3, 8}) {
    std::vector<EmulatedCalls> seen(static_cast<std::size_t>(ranks));
    std::vector<int> said(seen.size()), exchanges(seen.size());
    OnDeviceRanks(ranks, [&](LoopbackTransport& loopback) {
      const int rank = loopback.Rank();
      Uncounted transport(&loopback);
      cuda::DeviceExchange exchange({kNumel, kK}, &transport);
      std::vector<float> residual(kNumel, 1.0f), output(kNumel);
      SelectionState state;
      const Feedback feedback{{}, 1, 1, residual};
      emulated_calls = {};
      exchange.Run({feedback, &state, {output.data(), kNumel, DType::kFloat32}, 1}, nullptr);
      seen[rank] = emulated_calls;
      said[rank] = exchange.launches();
      exchanges[rank] = loopback.exchanges();
    });
    for (std::size_t rank = 0; rank < seen.size(); ++rank) {
      EXPECT_EQ(seen[rank].launches + seen[rank].clears, said[rank]);
      EXPECT_EQ(seen[rank].waits, 0);
      EXPECT_EQ(seen[rank].copies, 0);
      EXPECT_EQ(seen[rank].allocations, 0);
    }
    if (ranks == 8) {
      EXPECT_EQ(said[0], 15 + 1 + 3 * 4 + 4);  // select, clear, three rounds, finish
      EXPECT_EQ(exchanges[0], 3);
    }
  }
}

}  // namespace
}  // namespace hvd_sparse

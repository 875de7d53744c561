/// Which work messages over NCCL order, and which not, as NCCL's stand-in tells ThreadSanitizer.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/nccl_transport.h"
#include "tests/csrc/cuda/nccl_ranks.h"
#include "tests/csrc/nccl/with_fake_nccl.h"

namespace hvd_sparse::cuda {
namespace {

constexpr std::int64_t kBytes = 64;

class OrderOfMessages : public WithFakeNccl {
 protected:
  void SetUp() override {
    WithFakeNccl::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

/// One of two ranks that share memory, which is possible only in tests.
struct Rank {
  NcclTransport& transport;
  const int number, peer = 1 - number;
  std::vector<char>* const shared;
  std::vector<char> sent = std::vector<char>(kBytes), received = sent;
  const Stream stream, other;

  Rank(NcclTransport* transport, std::vector<char>* shared)
      : transport(*transport), number(transport->Rank()), shared(shared) {}

  void Send() { transport.Exchange(peer, sent.data(), nullptr, kBytes, stream.get()); }
  void Receive() { transport.Exchange(peer, nullptr, received.data(), kBytes, stream.get()); }
  static void Fill(std::vector<char>* memory, const Stream& stream) {
    cudaMemsetAsync(memory->data(), 1, memory->size(), stream.get());
  }
};

/// Expects that `body` is race-free on two ranks if `order` is true, and a data race otherwise.
void ExpectRaceWithout(const std::function<void(Rank&, bool order)>& body) {
  const auto run = [&body](bool order) {
    std::vector<char> shared(kBytes);
    const std::string problem = OnNcclRanks(2, [&](NcclTransport& transport, Communicator&) {
      Rank rank(&transport, &shared);
      body(rank, order);
      cudaDeviceSynchronize();
    });
    EXPECT_EQ(problem, "");
  };
  run(true);
  EXPECT_DEATH(run(false), "ThreadSanitizer: data race");
}

TEST_F(OrderOfMessages, WhatIsSentIsThereWhenItsStreamSendsIt) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 1) return rank.Receive();
    rank.Fill(&rank.sent, order ? rank.stream : rank.other);
    rank.Send();
  });
}

TEST_F(OrderOfMessages, WhatHasBeenSentMayChangeBehindIt) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 1) return rank.Receive();
    rank.Send();
    rank.Fill(&rank.sent, order ? rank.stream : rank.other);
  });
}

TEST_F(OrderOfMessages, WhatIsReceivedIsThereForItsStreamAlone) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 0) return rank.Send();
    rank.Receive();
    rank.Fill(&rank.received, order ? rank.stream : rank.other);
  });
}

TEST_F(OrderOfMessages, TheCpuReadsWhatIsReceivedWhenItHasWaitedForTheStream) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 0) return rank.Send();
    rank.Receive();
    if (order) rank.stream.Synchronize();
    EXPECT_EQ(rank.received[0], 0);
  });
}

TEST_F(OrderOfMessages, ARankThatReceivesIsBehindWhatTheOtherDidBeforeItSent) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 0) {
      if (order) rank.Fill(rank.shared, rank.stream);
      rank.Send();
      if (!order) rank.Fill(rank.shared, rank.stream);
    } else {
      rank.Receive();
      rank.Fill(rank.shared, rank.stream);
    }
  });
}

TEST_F(OrderOfMessages, ARankThatSendsIsBehindNothingThatTheOtherDoes) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    if (rank.number == 0) {
      rank.Send();
      if (order) rank.Receive();  // an answer
    } else {
      rank.Fill(rank.shared, rank.stream);
      rank.Receive();
      if (order) rank.Send();
    }
    if (rank.number == 0) rank.Fill(rank.shared, rank.stream);
  });
}

TEST_F(OrderOfMessages, MessagesOfOneCallAreBesideEachOther) {
  ExpectRaceWithout([](Rank& rank, bool order) {
    void* const to = order ? rank.received.data() : rank.sent.data();
    rank.transport.Exchange(rank.peer, rank.sent.data(), to, kBytes, rank.stream.get());
  });
}

}  // namespace
}  // namespace hvd_sparse::cuda

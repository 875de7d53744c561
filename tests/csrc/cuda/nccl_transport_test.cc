/// Messages between devices over NCCL; ranks are threads of this process.
///
/// If csrc/cuda/ is compiled for tests without a GPU, a library stands in for NCCL; otherwise the
/// tests use NCCL, on as many devices as there are. Ranks that share one allocate memory before the
/// first message, and free it after the last one: the device would wait for messages in flight, and
/// they for ranks that wait for the device.

#include "csrc/cuda/transport/nccl_transport.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>

#include "csrc/base/error.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/messages.h"
#include "tests/csrc/cuda/nccl_ranks.h"
#include "tests/csrc/meeting.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

class NcclTransportTest : public CudaTest {
 protected:
  using Program = std::function<void(NcclTransport&, Communicator&, cudaStream_t)>;

  void SetUp() override {
    CudaTest::SetUp();
#ifdef FAKE_NCCL_FOLDER
    ::setenv("HVD_SPARSE_NCCL_LIBRARY", FAKE_NCCL_FOLDER "/libfake_nccl.so", 1);
    ::setenv(nccl::kSharing, "1", 1);
#endif
    ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  }
  void TearDown() override {
#ifdef FAKE_NCCL_FOLDER
    ::unsetenv(nccl::kSharing);
#endif
    ::setenv("HVD_SPARSE_NCCL", "0", 1);
  }

  /// Runs `program` on `size` ranks; returns false, and keeps the reason, if they cannot use NCCL
  /// here.
  bool OnRanks(int size, const Program& program) {
    problem_ = OnNcclRanks(size, [&](NcclTransport& transport, Communicator& comm) {
      const Stream stream;
      program(transport, comm, stream.get());
    });
    return problem_.empty();
  }

  std::string problem_;
};

#define ON_RANKS(size, ...) \
  if (!OnRanks(size, __VA_ARGS__)) GTEST_SKIP() << problem_

/// A swap between two ranks, as one of them sees it.
struct Swap {
  int own, peer, number;
  std::int64_t bytes;
  DeviceArray<std::uint8_t> sent, received;

  Swap(int rank, int other, int n, std::int64_t length)
      : own(rank),
        peer(other),
        number(n),
        bytes(length),
        sent(Message(rank, other, n, length)),
        received(Bytes(static_cast<std::size_t>(length))) {}
};

TEST_F(NcclTransportTest, PairsSwapMessagesOfAnyLengthInOrder) {
  for (const int size : {2, 3, 4}) {
    Meeting meeting(size);
    ON_RANKS(size, [&](NcclTransport& transport, Communicator&, cudaStream_t stream) {
      const int own = transport.Rank();
      std::deque<Swap> swaps;
      int n = 0;
      for (const std::int64_t bytes : {1, 4, 1001, 1 << 20}) {
        for (int low = 0; low < size; ++low) {
          for (int high = low + 1; high < size; ++high, ++n) {
            if (own == low || own == high) swaps.emplace_back(own, low + high - own, n, bytes);
          }
        }
      }
      meeting.Attend();
      for (Swap& one : swaps) {
        transport.Exchange(one.peer, one.sent.data(), one.received.data(), one.bytes, stream);
        transport.Await(stream, "a test");
      }
      meeting.Attend();
      for (Swap& one : swaps) {
        EXPECT_EQ(one.received.Values(), Message(one.peer, own, one.number, one.bytes));
      }
    });
  }
}

TEST_F(NcclTransportTest, AMessageCanGoOneWayOnly) {
  Meeting meeting(3);
  ON_RANKS(3, [&](NcclTransport& transport, Communicator&, cudaStream_t stream) {
    const int own = transport.Rank(), last = transport.Size() - 1;
    const std::int64_t bytes = 300;
    DeviceArray<std::uint8_t> passed(own == 0 ? Message(0, 0, 0, bytes) : Bytes(bytes));
    meeting.Attend();
    if (own > 0) transport.Exchange(own - 1, nullptr, passed.data(), bytes, stream);
    if (own < last) transport.Exchange(own + 1, passed.data(), nullptr, bytes, stream);
    transport.Await(stream, "a test");
    meeting.Attend();
    EXPECT_EQ(passed.Values(), Message(0, 0, 0, bytes));
  });
}

TEST_F(NcclTransportTest, ARankThatEndsTheExchangeFreesThoseThatWaitForTheDevice) {
  Meeting meeting(3);
  ON_RANKS(3, [&](NcclTransport& transport, Communicator& comm, cudaStream_t stream) {
    DeviceArray<std::uint8_t> sent(Bytes(64)), received(Bytes(64));
    const int own = transport.Rank();
    meeting.Attend();
    const Error error = Thrown([&] {
      // Rank 0 waits for rank 2, which waits for rank 1 in vain.
      if (own == 1) Throw(ErrorKind::kExchangeFailed, "rank 1 has had enough");
      transport.Exchange(own == 0 ? 2 : 1, sent.data(), received.data(), 64, stream);
      transport.Await(stream, "bucket 'b'");
    });
    if (own == 1) comm.Fail(error.kind(), error.what());
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_TRUE(Says(error, "rank 1 has had enough")) << error.what();
    EXPECT_TRUE(Says(Thrown([&] { transport.Check(); }), "rank 1 has had enough"));
  });
}

TEST_F(NcclTransportTest, WhatNoTransportCanDoIsRefused) {
  ON_RANKS(2, [](NcclTransport& transport, Communicator&, cudaStream_t stream) {
    ExpectRefusalOfImpossibleMessages(transport, stream);
  });
}

TEST_F(NcclTransportTest, NobodyUsesItIfTheUserSaysNo) {
  ::setenv("HVD_SPARSE_NCCL", "0", 1);
  std::atomic<int> connected{0};
  OnRanks(3, [&](NcclTransport&, Communicator&, cudaStream_t) { ++connected; });
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(problem_, "");  // no reason is reported
}

}  // namespace
}  // namespace hvd_sparse::cuda

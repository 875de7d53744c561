/// Messages between devices over a communicator that accepts device memory; ranks are threads of
/// this process.

#include "csrc/cuda/transport/mpi_transport.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/device_loopback.h"
#include "tests/csrc/cuda/messages.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

class CudaMpiTransport : public CudaTest {
 protected:
  using Program = std::function<void(MpiTransport&, Communicator&, cudaStream_t)>;

  static void OnRanks(int size, const Program& program, double timeout_seconds = 60) {
    auto world = std::make_shared<LoopbackWorld>(size, timeout_seconds);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        DeviceLoopback comm(world, rank);
        MpiTransport transport(&comm, 0);
        const Stream stream;
        program(transport, comm, stream.get());
      });
    }
    for (auto& thread : threads) thread.join();
  }
};

/// Each message is written on the stream, sent from there, and read on the stream.
TEST_F(CudaMpiTransport, PairsSwapMessagesOfAnyLengthInTheOrderOfAStream) {
  OnRanks(4, [](MpiTransport& transport, Communicator&, cudaStream_t stream) {
    const int own = transport.Rank();
    int n = 0;
    for (const std::int64_t bytes : {1, 4, 1001, 1 << 20}) {
      for (int low = 0; low < 4; ++low) {
        for (int high = low + 1; high < 4; ++high, ++n) {
          if (own != low && own != high) continue;
          const int peer = own == low ? high : low;
          const Bytes zeros(static_cast<std::size_t>(bytes));
          DeviceArray<std::uint8_t> from(Message(own, peer, n, bytes));
          DeviceArray<std::uint8_t> sent(zeros), received(zeros), to(zeros);
          const auto copy = [&](DeviceArray<std::uint8_t>& into, DeviceArray<std::uint8_t>& of) {
            Check(cudaMemcpyAsync(into.data(), of.data(), zeros.size(), cudaMemcpyDefault, stream),
                  "copy");
          };
          copy(sent, from);
          transport.Exchange(peer, sent.data(), received.data(), bytes, stream);
          copy(to, received);
          EXPECT_EQ(to.Values(), Message(peer, own, n, bytes));
        }
      }
    }
  });
}

TEST_F(CudaMpiTransport, AMessageCanGoOneWayOnly) {
  OnRanks(3, [](MpiTransport& transport, Communicator&, cudaStream_t stream) {
    const int own = transport.Rank();
    const std::int64_t bytes = 300;
    DeviceArray<std::uint8_t> passed(own == 0 ? Message(0, 0, 0, bytes) : Bytes(bytes));
    if (own > 0) transport.Exchange(own - 1, nullptr, passed.data(), bytes, stream);
    if (own < 2) transport.Exchange(own + 1, passed.data(), nullptr, bytes, stream);
    EXPECT_EQ(passed.Values(), Message(0, 0, 0, bytes));
  });
}

TEST_F(CudaMpiTransport, WhatNoTransportCanDoIsRefused) {
  OnRanks(2, [](MpiTransport& transport, Communicator&, cudaStream_t stream) {
    ExpectRefusalOfImpossibleMessages(transport, stream);
    EXPECT_FALSE(transport.HoldsMemory());
  });
}

TEST_F(CudaMpiTransport, AMessageOfAnotherLengthIsFoundOut) {
  OnRanks(2, [](MpiTransport& transport, Communicator& comm, cudaStream_t stream) {
    if (comm.Rank() == 1) {
      const char byte = 1;
      const std::vector<Outgoing> out{{0, &byte, 1}};
      return comm.Transfer(out, {}, "a test");
    }
    DeviceArray<std::uint8_t> memory(Bytes(64));
    transport.Begin("bucket 'b'");
    const Error error = Thrown([&] { transport.Exchange(1, nullptr, memory.data(), 64, stream); });
    EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    EXPECT_TRUE(Says(error,
                     "in bucket 'b', between ranks 0 and 1 rank 1 sent 1 bytes, expected "
                     "are 64"))
        << error.what();
  });
}

TEST_F(CudaMpiTransport, APeerThatNeverComesIsGivenUpAtTheLimitAndTheMemoryIsHeld) {
  OnRanks(
      2,
      [](MpiTransport& transport, Communicator&, cudaStream_t stream) {
        if (transport.Rank() == 1) return;
        DeviceArray<std::uint8_t> sent(Bytes(64)), received(Bytes(64));
        transport.Begin("bucket 'b'");
        const Error error =
            Thrown([&] { transport.Exchange(1, sent.data(), received.data(), 64, stream); });
        EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
        EXPECT_TRUE(Says(error, "for rank 1 in bucket 'b', between ranks 0 and 1")) << error.what();
        EXPECT_TRUE(transport.HoldsMemory());
      },
      0.2);
}

}  // namespace
}  // namespace hvd_sparse::cuda

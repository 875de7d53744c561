/// The setup of a gTop-k between devices; mpi_exchange_test.cc compares the bits of its rounds.

#include "csrc/cuda/transport/device_gtopk.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/csrc/cuda/device_blocks.h"
#include "tests/csrc/cuda/loopback_transport.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using CudaDeviceGTopK = CudaTest;

TEST_F(CudaDeviceGTopK, BlocksThatNoMergeTakesAreRefusedBeforeMemoryIsTaken) {
  LoopbackTransport transport(std::make_shared<TransportWorld>(2), 0);
  for (const auto& [k, slack] :
       {std::pair(std::int64_t{1} << 30, 1.0), std::pair(std::int64_t{1} << 29, 2.0),
        std::pair((std::int64_t{1} << 30) - 63, 1.0)}) {
    const Error error = Thrown([&] { cuda::DeviceGTopK(kMaxBucketNumel, k, {slack}, &transport); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Says(error, "the entries that are kept must be at most 1073741760"))
        << error.what();
  }
}

TEST_F(CudaDeviceGTopK, NoMessageHoldsWhatWasNeverWritten) {
  LoopbackTransport transport(std::make_shared<TransportWorld>(2), 0);
  const cuda::DeviceGTopK rounds(1000, 10, {3}, &transport);
  rounds.ClearBlocks(nullptr);
  for (const cuda::DeviceBlock& block : {rounds.selected(), rounds.reduced()}) {
    std::vector<char> bytes(static_cast<std::size_t>(block.message_bytes()), 1);
    CopyBytes(bytes.data(), block.message(), bytes.size());
    EXPECT_EQ(bytes, std::vector<char>(bytes.size()));
  }
}

/// As if a message of another bucket had come, after the ranks compared what they are about to do.
TEST_F(CudaDeviceGTopK, RanksWhoseBlocksDoNotBelongTogetherAllLearnOfIt) {
  for (const int ranks : {2, 5, 8}) {
    for (const int other : {0, ranks - 1}) {
      OnDeviceRanks(ranks, [&](LoopbackTransport& transport) {
        cuda::DeviceGTopK rounds(100, 4, {}, &transport);
        rounds.ClearBlocks(nullptr);
        const int rank = transport.Rank();
        cuda::DeviceBlockHeader header;
        header.bucket = rank == other ? 1 : 0;
        const OwnedBlock own(Entries{{Marked(rank, true), 1}}, header);
        CopyBytes(rounds.selected().message(), own.block().message(), sizeof(header));
        CopyBytes(rounds.selected().indices, own.block().indices, sizeof(Index));
        CopyBytes(rounds.selected().values, own.block().values, sizeof(float));
        rounds.Run(nullptr);
        EXPECT_EQ(BlockOnCpu(rounds.reduced()).header.flags,
                  static_cast<std::uint32_t>(cuda::kDisagree));
      });
    }
  }
}

}  // namespace
}  // namespace hvd_sparse

/// The setup of a gTop-k between devices; device_exchange_test.cc tests its rounds.

#include "csrc/cuda/step/device_gtopk.h"

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

}  // namespace
}  // namespace hvd_sparse

/// What a gTop-k between devices is made of, before its rounds; device_exchange_test.cc has these.

#include "csrc/cuda/device_gtopk.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/csrc/cuda/device_blocks.h"
#include "tests/csrc/cuda/loopback_transport.h"

namespace hvd_sparse {
namespace {

using CudaDeviceGTopK = CudaTest;

TEST_F(CudaDeviceGTopK, NoMessageHoldsWhatWasNeverWritten) {
  LoopbackTransport transport(std::make_shared<TransportWorld>(2), 0);
  const cuda::DeviceGTopK rounds(1000, 10, 3, &transport);
  for (const cuda::DeviceBlock& block : {rounds.selected(), rounds.reduced()}) {
    std::vector<char> bytes(static_cast<std::size_t>(block.message_bytes()), 1);
    CopyBytes(bytes.data(), block.message(), bytes.size());
    EXPECT_EQ(bytes, std::vector<char>(bytes.size()));
  }
}

}  // namespace
}  // namespace hvd_sparse

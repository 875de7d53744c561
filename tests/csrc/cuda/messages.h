/// Messages whose bytes encode their sender, their receiver and their number.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/transport/gpu_transport.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {

using Bytes = std::vector<std::uint8_t>;

/// Returns the n-th message from rank `from` to rank `to`.
inline Bytes Message(int from, int to, int n, std::int64_t bytes) {
  Bytes message(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + 31 * from + 17 * to + n);
  }
  return message;
}

/// Expects, on one of two ranks, that messages to invalid ranks, to itself or of no bytes are
/// refused, and that the transport stays usable.
inline void ExpectRefusalOfImpossibleMessages(cuda::GpuTransport& transport, cudaStream_t stream) {
  const int own = transport.Rank();
  DeviceArray<std::uint8_t> memory(Bytes(64));
  const auto refused = [&](int peer, std::int64_t bytes) {
    return Thrown([&] { transport.Exchange(peer, memory.data(), nullptr, bytes, stream); });
  };
  EXPECT_TRUE(Says(refused(own, 8), Concat("peer must be a rank below 2 other than ", own)));
  EXPECT_TRUE(Says(refused(2, 8), "got 2"));
  EXPECT_TRUE(Says(refused(1 - own, 0), "bytes must be positive, got 0"));
  transport.Check();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_

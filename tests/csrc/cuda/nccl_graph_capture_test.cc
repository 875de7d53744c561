/// The rounds of gTop-k over NCCL can be captured into a CUDA graph on all ranks, and every replay
/// does what the calls would have done. For GPUs alone: the emulation has no graphs.

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "csrc/comm/loopback_communicator.h"
#include "csrc/cuda/stream.h"
#include "csrc/kernels/kernels_for.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/graphs.h"
#include "tests/csrc/cuda/nccl_ranks.h"

namespace hvd_sparse {
namespace {

using CudaNcclGraphCapture = CudaTest;

/// A rank for each device.
TEST_F(CudaNcclGraphCapture, RoundsOverNcclCanBeCaptured) {
  ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  const int size = static_cast<int>(CudaDeviceNames().size());
  const auto world = std::make_shared<LoopbackWorld>(size);
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const cuda::OnDevice current(rank);
      LoopbackCommunicator comm(world, rank);
      const NcclConnection made = ConnectNccl(&comm, rank, {});
      problems[static_cast<std::size_t>(rank)] = made.problem;
      if (made.transport != nullptr) ExpectTheSameFromAGraph(made.transport.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!problems[0].empty()) GTEST_SKIP() << problems[0];
}

}  // namespace
}  // namespace hvd_sparse

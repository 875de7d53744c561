/// The rounds of gTop-k over NCCL can be captured into a CUDA graph on all ranks, and every replay
/// does what the calls would have done. These tests need GPUs: the emulation has no graphs.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "csrc/devices/kernels_for.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/graphs.h"
#include "tests/csrc/cuda/nccl_ranks.h"

namespace hvd_sparse {
namespace {

class CudaNcclGraphCapture : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  }
  void TearDown() override { ::setenv("HVD_SPARSE_NCCL", "0", 1); }
};

/// Runs one rank per device.
TEST_F(CudaNcclGraphCapture, RoundsOverNcclCanBeCaptured) {
  const int size = static_cast<int>(CudaDeviceNames().size());
  const std::string problem = OnNcclRanks(size, [](cuda::NcclTransport& transport, Communicator&) {
    ExpectTheSameFromAGraph(&transport);
  });
  if (!problem.empty()) GTEST_SKIP() << problem;
}

}  // namespace
}  // namespace hvd_sparse

/// Errors of CUDA's runtime map to the right kinds of Error.

#include "csrc/cuda/base/check.h"

#include <gtest/gtest.h>

#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

ErrorKind ToldAs(cudaError_t status) {
  const Error error = Thrown([status] { Check(status, "do what a test wants"); });
  EXPECT_TRUE(Says(error, "CUDA could not do what a test wants: ")) << error.what();
  return error.kind();
}

TEST(CudaCheck, TellsWhatIsMissingFromWhatHasFailed) {
  Check(cudaSuccess, "do nothing");
  EXPECT_EQ(ToldAs(cudaErrorNoDevice), ErrorKind::kUnavailable);
  EXPECT_EQ(ToldAs(cudaErrorInsufficientDriver), ErrorKind::kUnavailable);
  EXPECT_EQ(ToldAs(cudaErrorMemoryAllocation), ErrorKind::kOutOfMemory);
  EXPECT_EQ(ToldAs(cudaErrorInvalidConfiguration), ErrorKind::kExchangeFailed);
}

}  // namespace
}  // namespace hvd_sparse::cuda

/// Work that is given to a stream without a wait can be captured into a CUDA graph, and every
/// replay does what the calls would have done. These tests need a GPU: the emulation has no graphs.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/kernels/merge_work.h"
#include "csrc/devices/kernels_for.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/graphs.h"
#include "tests/csrc/cuda/loopback_transport.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = kCapturedNumel, kK = kCapturedK;

using CudaGraphCapture = CudaTest;

TEST_F(CudaGraphCapture, AReplayedMergeHasTheBitsOfTheOneThatWasGiven) {
  const std::vector<float> values = Awkward(2 * kNumel, 3);
  Entries own, theirs;
  for (Index i = 0; i < 900; ++i) own.push_back({3 * i, values[i]});
  for (Index i = 0; i < 700; ++i) theirs.push_back({2 * i + 1, values[1000 + i]});
  const cuda::Stream stream;
  const auto handle = reinterpret_cast<StreamHandle>(stream.get());  // NOLINT: as torch passes it
  const auto work = cuda::MakeMergeWork(0, MakeBlock(own), MakeBlock(theirs), kK);
  SparseBlock expected, made;
  work->Enqueue(handle);
  work->WaitForResult(&expected);
  Graph graph(stream.get(), [&] { work->Enqueue(handle); });
  for (int time = 0; time < kReplays; ++time) {
    graph.Replay();
    work->WaitForResult(&made);
    EXPECT_EQ(EntriesOf(made), EntriesOf(expected));
  }
}

TEST_F(CudaGraphCapture, AnExchangeWhoseStreamIsBeingCapturedIsRefusedByName) {
  const cuda::Stream stream;
  const auto handle = reinterpret_cast<StreamHandle>(stream.get());  // NOLINT: as torch passes it
  const Kernels& kernels = KernelsFor({DeviceType::kCuda, 0});
  kernels.EndOf(handle);
  Graph graph(stream.get(), [&] {
    const Error error = Thrown([&] { kernels.EndOf(handle); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Says(error, "is being captured into a CUDA graph")) << error.what();
  });
  kernels.EndOf(handle);
}

TEST_F(CudaGraphCapture, AThreadOfAnExchangeBreaksNoCaptureOfAnother) {
  DeviceArray<float> gradient(Awkward(kNumel, 4)), residual(Awkward(kNumel, 5));
  const Feedback feedback{{gradient.data(), kNumel, DType::kFloat32}, 1, 1, residual.span()};
  const cuda::Stream stream;
  cudaGraph_t graph = nullptr;
  cuda::Check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capture");
  std::thread exchange([&] {
    const Kernels& kernels = KernelsFor({DeviceType::kCuda, 0});
    EXPECT_NO_THROW(kernels.Follow(nullptr));
    EXPECT_NO_THROW(kernels.Accumulate(feedback));  // it allocates, and waits
  });
  exchange.join();
  EXPECT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  (void)cudaGraphDestroy(graph);
}

TEST_F(CudaGraphCapture, ALoneRanksRoundsCanBeCaptured) {
  OnDeviceRanks(1, [](LoopbackTransport& transport) { ExpectTheSameFromAGraph(&transport); });
}

}  // namespace
}  // namespace hvd_sparse

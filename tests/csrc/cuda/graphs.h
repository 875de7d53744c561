/// CUDA graphs for tests: capture the work given to a stream, and replay it.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_GRAPHS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_GRAPHS_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/device_gtopk.h"
#include "tests/csrc/cuda/device_blocks.h"

namespace hvd_sparse {

constexpr std::int64_t kCapturedNumel = 20000, kCapturedK = 200;
constexpr int kReplays = 2;

/// A graph captured from the work of one stream.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& give) : stream_(stream) {
    cudaGraph_t graph = nullptr;
    cuda::Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    give();
    cuda::Check(cudaStreamEndCapture(stream, &graph), "end a capture");
    cuda::Check(cudaGraphInstantiate(&ready_, graph, 0), "make a graph ready");
    cuda::Check(cudaGraphDestroy(graph), "free a graph");
  }
  ~Graph() { (void)cudaGraphExecDestroy(ready_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Replay() { cuda::Check(cudaGraphLaunch(ready_, stream_), "launch a graph"); }

 private:
  const cudaStream_t stream_;
  cudaGraphExec_t ready_ = nullptr;
};

/// Returns this rank's block, half of which other ranks share, marked as delivered.
inline Entries BlockOf(int rank) {
  const std::vector<float> values = Awkward(kCapturedNumel, 10 + rank);
  Entries block;
  for (Index i = 0; i < kCapturedK; ++i) {
    block.push_back({Marked(i % 2 == 0 ? 7 * i : 7 * i + 1 + rank, true), values[i]});
  }
  return block;
}

inline void Put(const Entries& entries, const cuda::DeviceBlock& into) {
  const OwnedBlock block(entries);
  CopyBytes(into.message(), block.block().message(),
            static_cast<std::size_t>(block.block().message_bytes()));
}

/// Runs the rounds of one rank directly, then from a graph, and compares the results.
inline void ExpectTheSameFromAGraph(cuda::DeviceTransport* transport) {
  const cuda::Stream stream;
  cuda::DeviceGTopK rounds(kCapturedNumel, kCapturedK, {}, transport);
  rounds.ClearBlocks(stream.get());
  stream.Synchronize();
  Put(BlockOf(transport->Rank()), rounds.selected());
  rounds.Run(stream.get());  // connects the peers, too
  stream.Synchronize();
  const BlockOnCpu expected(rounds.reduced());
  EXPECT_EQ(expected.header.count, kCapturedK);
  Graph graph(stream.get(), [&] { rounds.Run(stream.get()); });
  for (int time = 0; time < kReplays; ++time) {
    if (transport->Size() > 1) Put({}, rounds.reduced());
    graph.Replay();
    stream.Synchronize();
    const BlockOnCpu made(rounds.reduced());
    EXPECT_EQ(made.entries, expected.entries);
    EXPECT_EQ(made.header.count, expected.header.count);
  }
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_GRAPHS_H_

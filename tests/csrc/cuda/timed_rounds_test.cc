/// Rounds are timed as often as requested, on any number of ranks.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/transport_collectives.h"
#include "tests/csrc/cuda/device_array.h"
#include "tests/csrc/cuda/loopback_transport.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse::cuda {
namespace {

using TimedRounds = CudaTest;

void Finish(cudaStream_t stream, const std::string&) {
  Check(cudaStreamSynchronize(stream), "finish its work");
}

void ExpectTimes(const std::vector<double>& seconds, std::size_t count) {
  EXPECT_EQ(seconds.size(), count);
  for (const double one : seconds) EXPECT_GT(one, 0);
}

TEST_F(TimedRounds, EverySwapIsTimedAtEveryDistance) {
  for (const int size : {2, 3, 4, 5}) {
    OnDeviceRanks(size, [size](LoopbackTransport& transport) {
      const OnDevice current(0);
      const Stream stream;
      for (int distance = 1; distance < size; distance *= 2) {
        const int peer = transport.Rank() ^ distance;
        if (peer >= size) continue;
        for (const std::int64_t bytes : {1, 1000, 100'000}) {
          const int before = transport.exchanges();
          ExpectTimes(TimedSwaps(&transport, peer, bytes, 4, stream.get(), &Finish), 4);
          EXPECT_EQ(transport.exchanges(), before + 5);
        }
      }
    });
  }
}

TEST_F(TimedRounds, MergesAndHandingsAreTimedOfBlocksOfAnyLength) {
  for (const std::int64_t entries : {1, 64, 5000}) {
    ExpectTimes(TimedMerges(0, entries, 3, &Finish), 3);
    ExpectTimes(TimedCopies(0, entries, 3, [] {}), 3);
  }
}

TEST_F(TimedRounds, BlocksWithoutEntriesAreRefused) {
  for (const Error& error : {Thrown([] { TimedMerges(0, 0, 1, &Finish); }),
                             Thrown([] { TimedCopies(0, 0, 1, [] {}); })}) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(Says(error, "entries must lie in [1, 1073741760], got 0")) << error.what();
  }
}

}  // namespace
}  // namespace hvd_sparse::cuda

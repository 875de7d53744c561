/// What gTop-k between devices takes, timed piece by piece, for those who plan: a round's messages,
/// the merge behind them, and handing blocks up to the device and down.
///
/// What a stream is given is timed by its own events, from the end of one piece to the end of the
/// next: the rounds of a bucket, too, follow each other there. The CPU's clock around a wait would
/// add the CPU's looks for the end, which a bucket pays once and not in every round; where giving
/// takes longer than doing, the device waits in between, and that is in what its events say.
///
/// No GPU has run this.

#ifndef HVD_SPARSE_CUDA_TIMED_ROUNDS_H_
#define HVD_SPARSE_CUDA_TIMED_ROUNDS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/cuda/device_transport.h"

namespace hvd_sparse::cuda {

/// Waits until a stream has done what it was given, for the sake of `what`; throws what ends that.
using AwaitStream = std::function<void(cudaStream_t stream, const std::string& what)>;

/// Seconds of each of `repetitions` swaps of `bytes` bytes with `peer`, which does the same; one
/// more goes before them, for which the ranks may have to wait. On the current device.
std::vector<double> TimedSwaps(DeviceTransport* transport, int peer, std::int64_t bytes,
                               int repetitions, cudaStream_t stream, const AwaitStream& await);

/// Seconds of each of `repetitions` merges of two blocks of `entries` entries, none of them common,
/// of which as many are kept.
std::vector<double> TimedMerges(int device, std::int64_t entries, int repetitions,
                                const AwaitStream& await);

/// Seconds of each of `repetitions` times that a block of `entries` entries goes up, and comes down
/// as it is: TransportGTopK of a rank alone. By the CPU's clock, since there the CPU waits; `check`
/// throws what ends its waits.
std::vector<double> TimedHandings(int device, std::int64_t entries, int repetitions,
                                  const std::function<void()>& check);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TIMED_ROUNDS_H_

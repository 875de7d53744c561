/// Collectives between the devices of an exchange, over a transport.
///
/// Also timings of gTop-k between devices, piece by piece, for the planner: a round's messages, the
/// merge after them, and copying blocks to the device and back.
///
/// Work of a stream is timed by its own events, from the end of one piece to the end of the next:
/// the rounds of a bucket, too, follow each other on a stream. The CPU's clock around a wait would
/// add the CPU's polling, which a bucket pays once and not in every round. If enqueuing takes
/// longer than the work, the device idles in between, and the times include that.
///
/// Several GPUs have not run this.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/cuda/base/device_transport.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

/// Runs each kernel of the collectives once, which loads it: loading waits for whatever runs on the
/// device (see MessageRoom). So call it before the ranks connect.
void LoadKernels(int device);

/// Returns the collectives over `transport`, which moves memory of `device`.
std::unique_ptr<GpuCollectives> MakeGpuCollectives(int device,
                                                   std::unique_ptr<GpuTransport> transport);

/// Waits until a stream has done all its work; `what` names the operation. Throws the error that
/// ends the wait.
using AwaitStream = std::function<void(cudaStream_t stream, const std::string& what)>;

/// Returns the seconds of each of `repetitions` swaps of `bytes` bytes with `peer`, which does the
/// same, after one swap in which the ranks may have to wait for each other. Runs on the current
/// device.
std::vector<double> TimedSwaps(DeviceTransport* transport, int peer, std::int64_t bytes,
                               int repetitions, cudaStream_t stream, const AwaitStream& await);

/// Returns the seconds of each of `repetitions` merges of two blocks of `entries` entries, without
/// common positions, of which `entries` are kept.
std::vector<double> TimedMerges(int device, std::int64_t entries, int repetitions,
                                const AwaitStream& await);

/// Returns the seconds of each of `repetitions` copies of a block of `entries` entries to the
/// device and back, by TransportGTopK of a single rank. These are timed by the CPU's clock, since
/// the CPU waits for them; `check` throws the error that ends a wait.
std::vector<double> TimedCopies(int device, std::int64_t entries, int repetitions,
                                const std::function<void()>& check);

}  // namespace hvd_sparse::cuda

#include "csrc/cuda/device_exchange.h"

#include <cmath>

#include "csrc/base/error.h"
#include "csrc/cuda/block_settle.h"
#include "csrc/cuda/scatter.h"

namespace hvd_sparse::cuda {

DeviceExchange::DeviceExchange(const DeviceBucket& bucket, DeviceTransport* transport)
    : bucket_(bucket),
      rank_(transport->Rank()),
      size_(transport->Size()),
      selector_(bucket.numel, bucket.k, bucket.refresh),
      rounds_(bucket.numel, bucket.k, bucket.slack, transport) {}

void DeviceExchange::Run(const DeviceLaunch& launch, cudaStream_t stream) {
  Require(launch.output.numel == bucket_.numel, "output must have size ", bucket_.numel, ", got ",
          launch.output.numel);
  Require(launch.output_scale > 0 && std::isfinite(launch.output_scale),
          "output_scale must be > 0 and finite, got ", launch.output_scale);
  const Span<float> residual = launch.feedback.residual;
  const Identity identity{rank_, bucket_.id, step_, static_cast<std::uint32_t>(bucket_.k)};
  selector_.Select(launch.feedback, identity, launch.state, selected(), stream);
  ++step_;
  rounds_.Run(stream);

  // What might refuse the step comes before all that cannot be undone.
  const float loss_scale = 1.0f / (launch.output_scale * static_cast<float>(size_));
  const Applying applying{reduced(), launch.output_scale, 0, launch.output, residual, loss_scale};
  LaunchCheckFits(applying, stream);
  LaunchSettle(selected(), reduced(), residual, stream);
  LaunchApply(applying, stream);
}

void DeviceExchange::Fetch(DeviceBlockHeader* pinned, cudaStream_t stream) const {
  Check(cudaMemcpyAsync(pinned, reduced().header, sizeof(*pinned), cudaMemcpyDeviceToHost, stream),
        "copy a header");
}

}  // namespace hvd_sparse::cuda

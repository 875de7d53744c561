#include "csrc/cuda/step/device_launch.h"

#include <cmath>

#include "csrc/base/error.h"

namespace hvd_sparse::cuda {

void CheckStep(const BucketSpec& spec, const DeviceLaunch& launch) {
  CheckLaunch(spec, launch);
  CheckGradients(spec, "outputs", launch.outputs);
  Require(launch.states.data != nullptr, "states of bucket '", spec.name, "' must have memory");
  Require(launch.output_scale > 0 && std::isfinite(launch.output_scale), "output_scale of bucket '",
          spec.name, "' must be > 0 and finite, got ", launch.output_scale);
}

}  // namespace hvd_sparse::cuda

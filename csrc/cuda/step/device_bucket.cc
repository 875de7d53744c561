#include "csrc/cuda/step/device_bucket.h"

#include <cmath>

#include "csrc/base/error.h"

namespace hvd_sparse::cuda {

std::int64_t DeviceBucket::Numel() const {
  std::int64_t numel = 0;
  for (const DeviceSegment& segment : segments) numel += segment.numel;
  return numel;
}

std::int64_t DeviceBucket::MaxAsked() const {
  std::int64_t asked = 0;
  for (const DeviceSegment& segment : segments) {
    if (segment.numel > 0) asked += segment.max_k;
  }
  return asked;
}

void CheckBucket(const DeviceBucket& bucket) {
  std::int64_t of_gradients = 0;
  for (const std::int64_t numel : bucket.gradient_numels) {
    Require(numel >= 0, "numel of a gradient of bucket ", bucket.id, " must be >= 0, got ", numel);
    of_gradients += numel;
  }
  for (const auto& [numel, max_k] : bucket.segments) {
    Require(numel >= 0, "numel of a segment of bucket ", bucket.id, " must be >= 0, got ", numel);
    if (numel == 0) continue;
    Require(1 <= max_k && max_k <= numel, "max_k of bucket ", bucket.id, " must lie in [1, ", numel,
            "], got ", max_k);
  }
  const std::int64_t numel = bucket.Numel();
  Require(1 <= numel && numel <= kMaxBucketNumel, "numel of bucket ", bucket.id,
          " must lie in [1, ", kMaxBucketNumel, "], got ", numel);
  Require(numel == of_gradients, "segments of bucket ", bucket.id, " hold ", numel,
          " entries, gradients ", of_gradients);
  Require(std::isfinite(bucket.slack) && bucket.slack >= 1, "slack of bucket ", bucket.id,
          " must be finite and at least 1, got ", bucket.slack);
  Require(bucket.refresh >= 1, "refresh of bucket ", bucket.id, " must be >= 1, got ",
          bucket.refresh);
}

void CheckStep(const DeviceBucket& bucket, const DeviceLaunch& launch) {
  const auto fits = [&](const char* argument, std::size_t expected, std::size_t got) {
    Require(expected == got, argument, " of bucket ", bucket.id, " must have size ", expected,
            ", got ", got);
  };
  const std::vector<std::int64_t>& numels = bucket.gradient_numels;
  const auto fit = [&](const char* argument, const std::vector<GradView>& views) {
    fits(argument, numels.size(), views.size());
    for (std::size_t i = 0; i < views.size(); ++i) {
      Require(views[i].numel == numels[i], argument, "[", i, "] of bucket ", bucket.id,
              " must have size ", numels[i], ", got ", views[i].numel);
      Require(views[i].data != nullptr || numels[i] == 0, argument, "[", i, "] of bucket ",
              bucket.id, " must have memory");
      Require(DType::kFloat32 <= views[i].dtype && views[i].dtype <= DType::kBFloat16, argument,
              "[", i, "] of bucket ", bucket.id, " has the unknown number type ",
              static_cast<int>(views[i].dtype));
    }
  };
  fits("residual", static_cast<std::size_t>(bucket.Numel()),
       static_cast<std::size_t>(launch.residual.size));
  if (launch.velocity.data != nullptr) {
    fits("velocity", static_cast<std::size_t>(bucket.Numel()),
         static_cast<std::size_t>(launch.velocity.size));
    Require(launch.momentum >= 0 && launch.momentum < 1, "momentum of bucket ", bucket.id,
            " must lie in [0, 1), got ", launch.momentum);
  }
  fit("gradients", launch.gradients);
  fit("outputs", launch.outputs);
  fits("decays", numels.size(), launch.decays.size());
  for (const float decay : launch.decays) {
    Require(std::isfinite(decay), "decay of bucket ", bucket.id, " must be finite, got ", decay);
  }
  fits("ks", bucket.segments.size(), launch.ks.size());
  for (std::size_t s = 0; s < launch.ks.size(); ++s) {
    const auto [numel, max_k] = bucket.segments[s];
    Require(numel == 0 || (1 <= launch.ks[s] && launch.ks[s] <= max_k), "k of bucket ", bucket.id,
            " must lie in [1, ", max_k, "], got ", launch.ks[s]);
  }
  Require(launch.states != nullptr, "states of bucket ", bucket.id, " must have memory");
  Require(launch.output_scale > 0 && std::isfinite(launch.output_scale),
          "output_scale must be > 0 and finite, got ", launch.output_scale);
}

}  // namespace hvd_sparse::cuda

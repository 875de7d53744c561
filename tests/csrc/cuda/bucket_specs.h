/// Descriptions of buckets for tests of csrc/cuda/step.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_SPECS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_SPECS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/collectives/bucket_spec.h"

namespace hvd_sparse {

/// A unit of selection, and the largest k of any step.
struct SegmentPlan {
  std::int64_t numel;
  std::int64_t max_k;
};

/// Returns a bucket that `gaussian` selects from and gtopk exchanges.
inline BucketSpec SpecOf(const std::vector<SegmentPlan>& segments,
                         std::vector<std::int64_t> gradient_numels, double slack = 1,
                         double refresh = 32) {
  BucketSpec spec;
  spec.name = "a bucket";
  spec.gradient_numels = std::move(gradient_numels);
  for (const auto& [numel, max_k] : segments) {
    spec.segment_numels.push_back(numel);
    spec.max_ks.push_back(max_k);
  }
  spec.sparsifier = "gaussian";
  spec.sparsifier_options["refresh"] = refresh;
  spec.collective = "gtopk";
  spec.collective_options.slack = slack;
  return spec;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_BUCKET_SPECS_H_

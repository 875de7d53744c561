/// Parts of a step that stay on a device and can be enqueued on a stream one by one, for tests and
/// benchmarks.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

class StreamWork {
 public:
  virtual ~StreamWork() = default;

  /// Enqueues the work on a stream and returns before it is done. May be called repeatedly, with
  /// the same stream.
  virtual void Enqueue(StreamHandle stream) = 0;

  /// Waits for the device and copies the block made by the last Enqueue to `result`.
  virtual void WaitForResult(SparseBlock* result) = 0;
};

/// Makes parts of a step on a device of some type, given the device's number. All throw Unavailable
/// if there is no such device; csrc/cuda/step/stream_work.h describes them.
struct StreamWorkMakers {
  using Made = std::unique_ptr<StreamWork>;
  Made (*merge)(int device, const SparseBlock& own, const SparseBlock& theirs, std::int64_t k);
  Made (*pass)(int device, GradView gradient, Span<float> residual, float threshold,
               std::int64_t k);
  Made (*select)(int device, GradView gradient, Span<float> residual, std::int64_t k);
  Made (*step)(int device, const std::vector<GradView>& gradients, Span<float> residual,
               const std::vector<std::int64_t>& ks, const std::vector<GradView>& outputs);
};

}  // namespace hvd_sparse

/// Merging two blocks on a device, as in a round of gtopk there: for tests and benchmarks, and
/// timed for plans.

#pragma once

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

class MergeWork {
 public:
  virtual ~MergeWork() = default;

  /// Enqueues the work on a stream and returns before it is done. May be called repeatedly, with
  /// the same stream.
  virtual void Enqueue(StreamHandle stream) = 0;

  /// Waits for the device and copies the block made by the last Enqueue to `result`.
  virtual void WaitForResult(SparseBlock* result) = 0;
};

}  // namespace hvd_sparse

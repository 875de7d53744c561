/// Parts of a step that stay on a device and can be enqueued on a stream one by one, for tests and
/// benchmarks.

#ifndef HVD_SPARSE_KERNELS_STREAM_WORK_H_
#define HVD_SPARSE_KERNELS_STREAM_WORK_H_

#include "csrc/base/device.h"
#include "csrc/base/sparse_block.h"

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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_STREAM_WORK_H_

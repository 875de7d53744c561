/// Pieces of a step that stay on a device, each to be given to a stream by itself: for tests and
/// benchmarks.

#ifndef HVD_SPARSE_KERNELS_STREAM_WORK_H_
#define HVD_SPARSE_KERNELS_STREAM_WORK_H_

#include "csrc/base/device.h"
#include "csrc/base/sparse_block.h"

namespace hvd_sparse {

class StreamWork {
 public:
  virtual ~StreamWork() = default;

  /// Gives the work to a stream, and returns before it is done. May be called again and again, with
  /// the same stream.
  virtual void Give(StreamHandle stream) = 0;

  /// Waits for the device; the block that the last call has made becomes `result`.
  virtual void Fetch(SparseBlock* result) = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_STREAM_WORK_H_

/// A bucket's selection under way, on the device: what its launches share.

#ifndef HVD_SPARSE_CUDA_BUCKET_PASS_H_
#define HVD_SPARSE_CUDA_BUCKET_PASS_H_

#include <cstdint>

#include "csrc/cuda/bucket_tables.h"
#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

struct Digits;

/// Of a segment.
struct SegmentPass {
  unsigned above;  ///< entries that exceeded its threshold, room or not
  unsigned taken;  ///< its candidates
  unsigned start;  ///< where they begin among those of all segments

  /// Whether the threshold was of no use: fewer or more entries exceeded it than will do.
  HVD_SPARSE_INLINE bool HasMissed(const ThresholdControl& control) const {
    return above < control.fewest || above > control.room;
  }
};

/// Of all segments.
struct BucketPass {
  unsigned begun, begun_again, begun_segments;  ///< tiles of either pass over them; segments
  unsigned not_finite;                          ///< entries that error feedback refused
  unsigned missed;                              ///< whether any segment's threshold has
  unsigned flags;                               ///< of the block's header
};

/// Passed to kernels as it is.
struct Selecting {
  BucketView bucket;
  float* residual = nullptr;
  float* velocity = nullptr;         ///< as long, where momentum is corrected
  float momentum = 0;                ///< of the velocity
  float scale = 1;                   ///< of the gradients
  double refresh = 32;               ///< steps between exact refreshes
  SelectionState* states = nullptr;  ///< by segment, empty ones too

  // Scratch memory, all zero at first and good for one step.
  BucketPass* pass = nullptr;
  SegmentPass* segments = nullptr;
  unsigned long long *words = nullptr, *words_again = nullptr, *segment_words = nullptr;

  // The same, in no state; digits are cleared for the segments that need them.
  float* tried = nullptr;    ///< thresholds, by segment
  Index* indices = nullptr;  ///< candidates: of each segment by themselves, ascending, positions in
  float* values = nullptr;   ///< the bucket
  Digits* digits = nullptr;  ///< by segment

  void DivideZeros(const BucketLayout& layout, Divider* divider);
  void DivideRest(const BucketLayout& layout, Divider* divider);
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BUCKET_PASS_H_

/// State of one selection of a bucket, on the device, which its launches share.

#ifndef HVD_SPARSE_CUDA_STEP_BUCKET_PASS_H_
#define HVD_SPARSE_CUDA_STEP_BUCKET_PASS_H_

#include <cstdint>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/device_memory.h"
#include "csrc/cuda/step/bucket_tables.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

struct Digits;
struct PilePart;

/// State of one segment.
struct SegmentPass {
  unsigned above;  ///< entries that exceeded its threshold, room or not
  unsigned taken;  ///< the number of its candidates
  unsigned start;  ///< the number of entries of all segments before it

  /// Returns true if the threshold was of no use: too few or too many entries exceeded it.
  HVD_SPARSE_INLINE bool HasMissed(const ThresholdControl& control) const {
    return above < control.fewest || above > control.room;
  }
};

/// State of all segments together.
struct BucketPass {
  unsigned begun, begun_again, begun_segments;  ///< groups, tiles of the second pass, segments
  unsigned not_finite;                          ///< entries that error feedback refused
  unsigned missed;                              ///< tiles of segments whose threshold has missed
  unsigned flags;                               ///< for the block's header
};

/// Arguments of a selection's kernels, passed by value.
struct SelectionArgs {
  BucketView bucket;
  float* residual = nullptr;
  float* velocity = nullptr;         ///< as long, if momentum is corrected; else null
  float momentum = 0;                ///< factor of the velocity
  float scale = 1;                   ///< factor of the gradients
  double refresh = 32;               ///< steps between exact refreshes
  SelectionState* states = nullptr;  ///< by segment, empty ones too

  // Scratch memory for one step, all zero at first.
  BucketPass* pass = nullptr;
  SegmentPass* segments = nullptr;
  unsigned long long *group_words = nullptr, *words_again = nullptr, *segment_words = nullptr;

  // Scratch memory that need not be zero; digits are cleared for the segments that need them.
  float* tried = nullptr;         ///< thresholds, by segment
  Index* indices = nullptr;       ///< candidates: positions in the bucket, by segment, ascending
  float* values = nullptr;        ///< and their values
  Index* pile_indices = nullptr;  ///< the same in no order, see pile.cuh
  float* pile_values = nullptr;
  unsigned* missed = nullptr;  ///< the tiles that pass->missed counts, a segment's in order
  PilePart* parts = nullptr;   ///< by tile and warp
  Digits* digits = nullptr;    ///< by segment

  void DivideZeros(const BucketLayout& layout, Divider* divider);
  void DivideRest(const BucketLayout& layout, Divider* divider);
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BUCKET_PASS_H_

/// The parts of a bucket's step on a device, as the CPU launches them. Each section names the file
/// of its kernels.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/step/bucket_tables.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse::cuda {

// ---- The state of one selection of a bucket, on the device, which its launches share ------------

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

// ---- threshold_control.cu: the thresholds to try, with the bits of sparsifiers/prediction.h -----

/// Writes work.tried, with infinity if no threshold is known. Counts the step in the states. One
/// launch.
void LaunchFirstThresholds(const SelectionArgs& work, cudaStream_t stream);

// ---- bucket_take.cu: error feedback and taking, for all segments at once ------------------------

/// Adds the gradients to the residual, and takes the entries that exceed their segment's threshold,
/// work.tried, as candidates while there is room. Two launches, with the bits of Candidates::Take
/// for each slice, but for segments without enough room: which of the entries they take is not
/// determined. If there is a velocity, the first launch adds the gradients to that, and that to the
/// residual, with the bits of Kernels::Accumulate beforehand.
void LaunchFeedbackAndTake(const SelectionArgs& work, cudaStream_t stream);

/// For segments whose threshold has missed, puts the candidates back and takes the k largest
/// magnitudes, ties to the lower index, zeros never, with the bits of Kernels::FindTopK and
/// Candidates::TakeCut. Does nothing for other segments. Five launches, which end at once if no
/// threshold has missed: only the device knows.
void LaunchTopKWhereMissed(const SelectionArgs& work, cudaStream_t stream);

// ---- bucket_close.cu: each segment is trimmed, and all are gathered in one block ----------------

/// The header fields that identify a rank's block.
struct Identity {
  std::int32_t rank;
  std::uint32_t bucket, step, asked;
};

/// Trims segments with too many candidates to their k largest, with the bits of Kernels::KeepTopK;
/// the others return to the residual. Learns the next thresholds, computes where each segment's
/// entries will lie in the block, and writes the block's header. One launch.
void LaunchCloseSegments(const SelectionArgs& work, const DeviceBlock& block,
                         const Identity& identity, cudaStream_t stream);

/// Writes the entries of all segments to the block. If there are more than k, counts the first
/// level of a radix select of the k largest in `digits`, which must be zero. One launch.
void LaunchGather(const SelectionArgs& work, const DeviceBlock& block, std::int64_t k,
                  Digits* digits, cudaStream_t stream);

// ---- block_merge.cu: merging two blocks ---------------------------------------------------------

struct MergePass;
struct Digits;

/// The largest capacity of either of two blocks to merge.
constexpr std::int64_t kMostToMerge = kMaxBucketNumel / 2 / DeviceBlock::kUnit * DeviceBlock::kUnit;

/// Scratch memory of one merge, all zero at first.
struct MergeScratch {
  MergePass* pass = nullptr;
  unsigned long long* words = nullptr;  ///< see look_back.cuh

  /// Takes the memory for two blocks of `capacity` entries together from `divider`.
  static MergeScratch From(Divider* divider, std::int64_t capacity);
};

/// Merges two blocks with the bits of Kernels::Merge: `out` becomes their union, with values at
/// equal indices added and the survived bits of `own`. It has room for both, and is neither of
/// them.
///
/// The header of `out` is that of `own` combined with that of `theirs` (device_block.h): the flags
/// of both, the worse verdict, and the sum of not_finite. It also has kSumNotFinite if a value is
/// not finite, kDisagree if the two blocks do not belong together, and kMalformed if positions do
/// not ascend or a count exceeds its capacity. Malformed blocks cause no access beyond any block's
/// memory.
///
/// Counts the first level of a radix select of the result in `digits`, unless that is null.
void LaunchMerge(const DeviceBlock& own, const DeviceBlock& theirs, const DeviceBlock& out,
                 const MergeScratch& scratch, Digits* digits, cudaStream_t stream);

// ---- block_settle.cu: settling and undoing what a step has done to a residual -------------------

/// Arguments of LaunchSettle. `reduced` may be malformed. An entry is delivered if its index has
/// the survived bit there; none is if the header of `reduced` says that the step is refused.
struct SettleArgs {
  DeviceBlock selected, reduced;
  Span<float> residual;
  Span<float> velocity = {};  ///< if momentum is corrected; else empty
  float* masked = nullptr;    ///< receives the velocity's former values at the selected entries, in
                              ///< their order; null if the step is never undone
};

/// Applies Kernels::Settle, bit for bit: residual[i] = value for undelivered entries. Also applies
/// momentum factor masking: velocity[i] = 0 for delivered ones. One launch.
void LaunchSettle(const SettleArgs& args, cudaStream_t stream);

// Blocks may be malformed, and hold a position several times. Positions outside the residual are
// skipped.

/// Saves what a residual holds at the entries of a block: `former`, of the same capacity, receives
/// the header, the positions, and the residual's values there. It precedes LaunchApply, whose
/// rounding losses cannot be subtracted again, and which then reads header and positions from
/// `former`, where no late message can change them.
void LaunchNoteFormer(const DeviceBlock& block, Span<const float> residual,
                      const DeviceBlock& former, cudaStream_t stream);

/// Sets residual[i] = value for every entry of a selected block, or of one that LaunchNoteFormer
/// saved.
void LaunchPutBack(const DeviceBlock& block, Span<float> residual, cudaStream_t stream);

// ---- bucket_apply.cu: writing a reduced block into the gradients of its bucket ------------------

/// Arguments for writing a reduced block to the outputs of its bucket; see Kernels::Scatter.
struct ApplyArgs {
  BucketView bucket;
  DeviceBlock reduced;
  float scale;
  Span<float> residual;  ///< of the bucket; rounding losses are added to it
  float loss_scale;
};

/// Sets kSumNotFinite in the block's header if a value would not be finite once it is written.
/// Ranks that hold the same block come to the same result. One launch.
void LaunchCheckFits(const ApplyArgs& args, cudaStream_t stream);

/// Zeroes the outputs and writes the block to them; does nothing if the header says that the step
/// is refused. Two launches. The writes cannot be undone, so whatever might refuse the step must be
/// known before.
void LaunchApply(const ApplyArgs& args, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

/// Taking entries from a residual to a block, as a selection does.

#ifndef HVD_SPARSE_TESTS_CSRC_TAKING_H_
#define HVD_SPARSE_TESTS_CSRC_TAKING_H_

#include <cstdint>
#include <memory>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// The place of taken entries: behind the first `filled` ones of a block, which has room for `room`
/// more. The residual that they are taken from begins at `offset` in its bucket.
struct TakingPlace {
  std::int64_t room;
  Index offset = 0;
  std::int64_t filled = 0;
};

inline std::unique_ptr<Candidates> CandidatesAt(const TakingPlace& place, const Kernels& kernels,
                                                Span<float> residual, SparseBlock* out) {
  if (residual.data == nullptr) return kernels.NewCandidates({}, place.filled, place.room, out);
  const Span<float> bucket(residual.data - place.offset, residual.size + place.offset);
  return kernels.NewCandidates(bucket, place.filled, place.room, out);
}

/// Applies error feedback if there is a gradient, and takes what exceeds the threshold.
inline Tally TakeAbove(const Kernels& kernels, const Feedback& feedback, float threshold,
                       const TakingPlace& place, SparseBlock* out) {
  const auto candidates = CandidatesAt(place, kernels, feedback.residual, out);
  const Tally tally = candidates->Take(feedback, threshold);
  candidates->Fetch();
  return tally;
}

inline Tally TakeAbove(const Kernels& kernels, Span<float> residual, float threshold,
                       const TakingPlace& place, SparseBlock* out) {
  return TakeAbove(kernels, Feedback{{}, 1, 1, residual}, threshold, place, out);
}

/// Takes what the cut keeps; returns how many entries that is.
inline std::int64_t TakeCut(const Kernels& kernels, Span<float> residual, TopKCut cut,
                            const TakingPlace& place, SparseBlock* out) {
  const auto candidates = CandidatesAt(place, kernels, residual, out);
  candidates->TakeCut(residual, cut);
  candidates->Fetch();
  return candidates->count();
}

/// Takes what lies at the positions; returns how many entries that is.
inline std::int64_t TakeAt(const Kernels& kernels, Span<float> residual,
                           Span<const Index> positions, const TakingPlace& place,
                           SparseBlock* out) {
  const auto candidates = CandidatesAt(place, kernels, residual, out);
  candidates->TakeAt(residual, positions);
  candidates->Fetch();
  return candidates->count();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_TAKING_H_

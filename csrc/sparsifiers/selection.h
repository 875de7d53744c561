/// A selection in progress: one segment on its way from gradient to block.
///
/// Sparsifiers are written in terms of it: take entries above a threshold, check their count, keep
/// the largest of them, or put them all back and try another threshold. The first take does error
/// feedback in the same pass; at any time each value is in one place, the residual or the
/// candidates (csrc/kernels/candidates.h). Those of a GPU lie there until their values are asked
/// for, or the selection ends.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class Selection {
 public:
  /// `feedback`: the segment's gradients in order, or none if the residual contains them already.
  /// `residual`: that of the whole segment, whose place in the bucket is `offset`. Taken entries go
  /// behind the first `filled` ones of `out`, which has room for at least `room` more.
  Selection(Span<const Feedback> feedback, Span<float> residual, Index offset, std::int64_t filled,
            std::int64_t room, const Kernels& kernels, SparseBlock* out);

  std::int64_t size() const { return residual_.size; }
  Index offset() const { return offset_; }
  std::int64_t room() const { return room_; }

  /// The kernels for the result of Sample.
  const Kernels& sample_kernels() const { return kernels_.OfSamples(); }

  /// The number of gradient entries that were not finite. Valid once error feedback is done.
  std::int64_t not_finite() const { return not_finite_; }

  /// The number of entries taken, and their values.
  std::int64_t taken() const { return candidates_ == nullptr ? 0 : candidates_->count(); }
  Span<const float> values() {
    Finish();
    return {out_->values() + filled_, taken()};
  }

  /// Returns the smallest magnitude of the entries taken, of which there is at least one.
  float Smallest() { return candidates_->Smallest(); }

  /// Returns the k largest of either sign among the entries taken, or all. There is at least one.
  SignSums LargestOfSigns(std::int64_t k) { return candidates_->LargestOfSigns(k); }

  /// Returns about `count` entries of the segment as they are after error feedback, drawn by the
  /// seed from all over it. Cheap, also before error feedback. Valid until the next call on this
  /// thread.
  Span<const float> Sample(std::int64_t count, std::uint64_t seed) const;

  /// Takes the entries with |x| > threshold, as many as there is room for; returns how many exceed
  /// it. Requires that nothing has been taken.
  std::int64_t TakeAbove(float threshold);

  /// Takes the k largest magnitudes, ties to the lower index, zeros never. Requires k <= room, and
  /// that nothing has been taken. Makes several passes.
  void TakeTopK(std::int64_t k);

  /// Takes the entries at ascending positions. Requires that nothing has been taken.
  void TakeAt(Span<const Index> positions);

  /// Puts back all taken entries except the k largest magnitudes.
  void KeepTopK(std::int64_t k) {
    if (taken() > 0) candidates_->KeepTopK(k);
  }

  /// Puts back all taken entries except those of a group.
  void Keep(const SignGroup& group) {
    if (taken() > 0) candidates_->Keep(group);
  }

  /// Puts back all taken entries. Allocates nothing.
  void PutBack() {
    if (taken() > 0) candidates_->PutBack();
  }

  /// Completes the block: the entries taken lie there from now on.
  void Finish() {
    if (taken() > 0) candidates_->Fetch();
  }

  /// Completes error feedback; returns the residual, without the taken entries.
  Span<const float> Dense();

 private:
  /// Returns the candidates, which take memory from then on.
  Candidates& Own();

  bool HasAccumulated() const { return joined_ == feedback_.size; }

  const Span<const Feedback> feedback_;
  const Span<float> residual_;
  const Index offset_;
  const std::int64_t filled_, room_;
  const Kernels& kernels_;
  SparseBlock* const out_;

  std::int64_t not_finite_ = 0;
  std::int64_t joined_ = 0;                 // gradients whose error feedback is done
  std::unique_ptr<Candidates> candidates_;  // null until entries are taken
};

}  // namespace hvd_sparse

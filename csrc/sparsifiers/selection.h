/// A selection under way: one segment on its way from gradient to block.
///
/// Sparsifiers are written in terms of it: take entries above a threshold, look at how many they
/// are, keep the largest of them, or put them all back and try another threshold. The first taking
/// does error feedback in the same pass; whatever happens, each value stays at one place, the
/// residual or the block.

#ifndef HVD_SPARSE_SPARSIFIERS_SELECTION_H_
#define HVD_SPARSE_SPARSIFIERS_SELECTION_H_

#include <cstdint>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class Selection {
 public:
  /// A segment whose gradients are `feedback`, one behind the other, or none if they have joined
  /// the residual already; `residual` is all of it and `offset` its place in the bucket. Entries go
  /// behind the `filled` ones of `out`, which has at least `room` places more.
  Selection(Span<const Feedback> feedback, Span<float> residual, Index offset, std::int64_t filled,
            std::int64_t room, const Kernels& kernels, SparseBlock* out);

  std::int64_t size() const { return residual_.size; }
  Index offset() const { return offset_; }
  std::int64_t room() const { return room_; }

  /// For what Sample returns.
  const Kernels& sample_kernels() const { return kernels_.OfSamples(); }

  /// Entries of the gradients that were not finite. Valid once error feedback is done.
  std::int64_t not_finite() const { return not_finite_; }

  /// What has been taken.
  std::int64_t taken() const { return end_ - begin_; }
  Span<const float> values() const { return {out_->values() + begin_, taken()}; }

  /// About `count` entries of the segment as they are after error feedback, drawn by the seed from
  /// all over it; cheap, and before error feedback too. Valid until the next call on this thread.
  Span<const float> Sample(std::int64_t count, std::uint64_t seed) const;

  /// Takes the entries with |x| > threshold, as many as there is room for; returns how many there
  /// are. Nothing else has been taken.
  std::int64_t TakeAbove(float threshold);

  /// Takes the k largest magnitudes, ties to the lower index, zeros never; k <= room. Nothing else
  /// has been taken. Several passes.
  void TakeTopK(std::int64_t k);

  /// Takes the entries at ascending positions. Nothing else has been taken.
  void TakeAt(Span<const Index> positions);

  /// Puts back all that was taken but the k largest magnitudes.
  void KeepTopK(std::int64_t k);

  /// Puts back all that was taken.
  void PutBack();

  /// Error feedback, of as much as it is not done of; then the residual, less what has been taken.
  Span<const float> Dense();

 private:
  bool HasAccumulated() const { return joined_ == feedback_.size; }

  const Span<const Feedback> feedback_;
  const Span<float> residual_;
  const Index offset_;
  const std::int64_t begin_, room_;
  const Kernels& kernels_;
  SparseBlock* const out_;

  std::int64_t end_;  // of the entries taken
  std::int64_t not_finite_ = 0;
  std::int64_t joined_ = 0;  // gradients of which error feedback is done
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_SPARSIFIERS_SELECTION_H_

/// The entries that are taken from one segment, until a sparsifier has made its choice.
///
/// Taking moves entries from a residual: residual[i] becomes zero, and its value and its position
/// in the bucket are kept here. Entries that the sparsifier does not want return to the residual,
/// and the others end in a block that is being written. So every value is at exactly one place at
/// any time.
///
/// There is one implementation per type of device: csrc/kernels/cpu_kernels.h, where candidates
/// lie in the block from the beginning, and csrc/cuda/kernels/device_candidates.h. Most candidates
/// return to the residual, so a GPU sifts them where they are, and only the entries that stay cross
/// the bus.

#pragma once

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/kernels/sign_groups.h"

namespace hvd_sparse {

struct Feedback;
struct Tally;
struct TopKCut;

/// Entries taken from one segment, in ascending order. After a call that throws, PutBack still
/// returns all of them to the residual.
///
/// A residual from which entries are taken is a part of the bucket, and parts follow each other.
class Candidates {
 public:
  virtual ~Candidates() = default;

  /// Applies error feedback if there is a gradient; then takes the entries with |x| > threshold, in
  /// order, while there is room, and counts all of them. This is one pass: it reads the gradient
  /// and the residual once and writes the residual once.
  virtual Tally Take(const Feedback& feedback, float threshold) = 0;

  /// Takes the entries that `cut` keeps, while there is room.
  virtual void TakeCut(Span<float> residual, TopKCut cut) = 0;

  /// Takes the entries of `residual` at ascending positions, zeros included, while there is room.
  virtual void TakeAt(Span<float> residual, Span<const Index> positions) = 0;

  /// Puts back all but the k largest magnitudes; ties go to the lower index.
  virtual void KeepTopK(std::int64_t k) = 0;

  /// Puts back all but the entries of a group.
  virtual void Keep(const SignGroup& group) = 0;

  /// Puts back all candidates. Allocates nothing.
  virtual void PutBack() = 0;

  virtual std::int64_t count() const = 0;

  /// Returns the smallest magnitude of at least one candidate.
  virtual float Smallest() = 0;

  /// Returns the k largest of either sign, or all.
  virtual SignSums LargestOfSigns(std::int64_t k) = 0;

  /// Completes the block: until the next call that changes them, the candidates lie there, too.
  virtual void Fetch() = 0;
};

/// Returns where a part of a bucket begins.
inline Index OffsetIn(Span<float> bucket, Span<float> part) {
  return static_cast<Index>(part.data - bucket.data);
}

}  // namespace hvd_sparse

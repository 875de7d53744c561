/// A selection's candidates where they lie on a device, until the sparsifier has made its choice.
///
/// Most candidates return to the residual, so they are sifted where they are, and only the entries
/// that stay cross the bus. Candidates on the CPU lie in the block from the beginning.

#ifndef HVD_SPARSE_KERNELS_CANDIDATES_H_
#define HVD_SPARSE_KERNELS_CANDIDATES_H_

#include <array>
#include <cmath>
#include <cstdint>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

struct Feedback;
struct Tally;

/// The largest entries of one sign: magnitudes beyond `cut`, and the first `ties` that equal it.
struct SignGroup {
  bool negative = false;
  float cut = 0;
  std::int64_t ties = 0;
  std::int64_t count = 0;  ///< of all its entries

  bool Has(float value) const { return value != 0 && (value < 0) == negative; }

  /// Returns a predicate that accepts the group's entries among values that it is asked in order.
  auto Keeps() const {
    return [group = *this](float value) mutable {
      if (!group.Has(value)) return false;
      const float magnitude = std::fabs(value);
      return magnitude > group.cut || (magnitude == group.cut && group.ties-- > 0);
    };
  }
};

/// The magnitudes of a group's entries.
struct SignSum {
  SignGroup group;
  double sum = 0;
  double error = 0;  ///< limit of the difference from the sum that is added up in order
  float least = INFINITY;
};

/// Entries taken from one segment, in ascending order. After a call that throws, PutBack still
/// returns all of them to the residual.
class Candidates {
 public:
  virtual ~Candidates() = default;

  /// Applies error feedback if there is a gradient; then takes the entries with |x| > threshold
  /// from a part of the segment, whose place in the bucket is `offset`, while there is room. Parts
  /// follow each other.
  virtual Tally Take(const Feedback& feedback, float threshold, Index offset) = 0;

  /// Puts back all but the k largest magnitudes; ties go to the lower index.
  virtual void KeepTopK(std::int64_t k) = 0;

  /// Puts back all but the entries of a group.
  virtual void Keep(const SignGroup& group) = 0;

  /// Puts back all candidates. Allocates nothing.
  virtual void PutBack() = 0;

  virtual std::int64_t count() const = 0;

  /// Returns the smallest magnitude of at least one candidate.
  virtual float Smallest() = 0;

  /// Returns the k largest of either sign, or all: of the positive ones, of the negative ones.
  virtual std::array<SignSum, 2> LargestOfSigns(std::int64_t k) = 0;

  /// Copies the candidates to a block, behind its `filled` entries.
  virtual void Fetch(std::int64_t filled, SparseBlock* out) = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_CANDIDATES_H_

/// A sparsifier chooses what a rank sends: about k entries of one segment of a bucket.
///
/// Adding one: a file beside this one, a line in registry.cc, a dataclass in
/// hvd_sparse/sparsifiers.py. The tests of the laws find it through the registry.

#ifndef HVD_SPARSE_SPARSIFIERS_SPARSIFIER_H_
#define HVD_SPARSE_SPARSIFIERS_SPARSIFIER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class Sparsifier {
 public:
  virtual ~Sparsifier() = default;

  /// The most entries that Select writes when it is asked for k of `numel`.
  virtual std::int64_t Capacity(std::int64_t k, std::int64_t numel) const = 0;

  /// Appends about k entries of `dense` as (offset + i, dense[i]) to a block being written that
  /// holds `filled` entries already; returns how many it appended, at most Capacity(k, size).
  ///
  /// `threshold` is what the segment's last selection ended with (0: none yet) and is updated; it
  /// belongs to the caller, who saves it in checkpoints. 1 <= k <= dense.size, dense.size > 0.
  virtual std::int64_t Select(Span<const float> dense, std::int64_t k, Index offset,
                              std::int64_t filled, float* threshold, const Kernels& kernels,
                              SparseBlock* out) const = 0;
};

/// Names of all sparsifiers, in the order of the registry.
std::vector<std::string> SparsifierNames();

/// The sparsifier of that name; throws InvalidArgument, naming those that exist.
const Sparsifier& FindSparsifier(const std::string& name);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_SPARSIFIERS_SPARSIFIER_H_

/// The units of selection of a bucket, or their parts in a range of the bucket.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

class Segments {
 public:
  /// Returns the gradients to add to the residual of a part of a segment; valid until the next
  /// call. Does not fail.
  using GradientsOf =
      std::function<Span<const Feedback>(std::size_t segment, Range part, Span<float> residual)>;

  Segments() = default;

  /// Takes the parts in `range` of consecutive segments. A part is asked for its share of the
  /// segment's k, rounded up; `max_ks` bounds the ks of later calls. Nothing is selected from
  /// `spared`, a part of the range.
  Segments(const std::vector<std::int64_t>& numels, const std::vector<std::int64_t>& max_ks,
           Range range, const Sparsifier& sparsifier, Range spared = {});

  /// The most entries that Select leaves in a block, and the most that it writes there meanwhile.
  std::int64_t capacity() const { return capacity_; }
  std::int64_t room() const { return room_; }

  /// Returns how many entries all parts together are asked for, given the k of every whole segment.
  std::int64_t Asked(const std::vector<std::int64_t>& ks) const;

  /// Adds the gradients, if there are any, to the range's residual and moves about as many entries
  /// as are asked for to `out`, which it resets and finishes; positions count from the start of the
  /// range. Returns how many entries of the gradients were not finite. `states`: one for every
  /// whole segment. If it throws, for lack of memory, either all gradients have been added and
  /// nothing is taken, or, if `out` could not grow, nothing has happened.
  std::int64_t Select(const Sparsifier& sparsifier, const GradientsOf& gradients_of,
                      const std::vector<std::int64_t>& ks, Span<SelectionState> states,
                      Span<float> residual, const Kernels& kernels, SparseBlock* out) const;

 private:
  struct Part {
    std::size_t segment;
    Range in_segment;
    std::int64_t begin;  // in the range
    std::int64_t whole;  // entries of the segment
    bool is_spared;

    std::int64_t numel() const { return in_segment.size(); }
    std::int64_t Share(std::int64_t k) const {
      return is_spared ? 0 : (k * numel() + whole - 1) / whole;
    }
  };

  std::vector<Part> parts_;  // none is empty
  std::int64_t capacity_ = 0;
  std::int64_t room_ = 0;  // capacity of the block while a part is being selected
};

}  // namespace hvd_sparse

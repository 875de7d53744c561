/// TopK: exactly the k largest magnitudes, ties to the lower index.
///
/// Zeros are never sent: with fewer than k non-zeros those are all that is selected. Cost: up to
/// three reads for the radix select and one for writing. The remembered threshold is not needed; it
/// is set to the magnitude of the smallest entry kept.

#include <algorithm>

#include "csrc/sparsifiers/builtin.h"

namespace hvd_sparse {
namespace {

class TopK final : public Sparsifier {
 public:
  std::int64_t Capacity(std::int64_t k, std::int64_t numel) const override {
    return std::min(k, numel);
  }

  std::int64_t Select(Span<const float> dense, std::int64_t k, Index offset, std::int64_t filled,
                      float* threshold, const Kernels& kernels, SparseBlock* out) const override {
    const TopKCut cut = kernels.FindTopK(dense, k);
    *threshold = cut.magnitude;
    return kernels.SelectCut(dense, cut, offset, filled, out);
  }
};

}  // namespace

const Sparsifier& TopKSparsifier() {
  static const TopK sparsifier;
  return sparsifier;
}

}  // namespace hvd_sparse

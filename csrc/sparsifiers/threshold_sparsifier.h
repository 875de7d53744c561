/// The common base of the sparsifiers that estimate a threshold: bounds, control and recovery.
///
/// However bad the estimate, Select takes between 2k/3 and 4k/3 entries:
///
///     count = entries above the threshold          one pass, fused with error feedback
///     2k/3 <= count <= 4k/3                        done
///     4k/3 <  count <= room                        the k largest of them stay
///     otherwise                                    they go back, and another threshold is found:
///                                                  extrapolated, then by a bracketed search on
///                                                  counts; if none will do (many equal
///                                                  magnitudes), the exact top-k is taken
///
/// If there are fewer than 2k/3 non-zeros, all of them are taken. Entries that do not fit into a
/// step's block are smaller than those that do, never just of a higher index.

#pragma once

#include <cstdint>

#include "csrc/sparsifiers/prediction.h"
#include "csrc/sparsifiers/samples.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/sparsifiers/threshold_search.h"

namespace hvd_sparse {

/// Return the fewest and the most entries that are accepted where k are wanted: 2k/3 and 4k/3.
std::int64_t FewestFor(std::int64_t k);
std::int64_t MostFor(std::int64_t k, std::int64_t numel);

/// Starts a search for a threshold of k entries from a sample of the segment: a Gaussian fit of it
/// seeds a search on its own counts, whose result becomes the suggestion. Returns how many probes
/// of the data are worthwhile: one if the sample has so many equal magnitudes that no threshold
/// fits.
int SearchOnSample(std::int64_t k, const Selection& selection, ThresholdSearch* search);

class ThresholdSparsifier : public Sparsifier {
 public:
  std::int64_t Capacity(std::int64_t k, std::int64_t numel) const override;
  std::int64_t Room(std::int64_t k, std::int64_t numel) const override;
  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override;

 private:
  /// Returns the threshold that this step tries first.
  virtual float FirstThreshold(std::int64_t k, const Selection& selection,
                               SelectionState* state) const = 0;
};

}  // namespace hvd_sparse

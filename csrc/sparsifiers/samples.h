/// Samples of a segment: the thresholds estimated from them, and the exact top-k with their help.

#pragma once

#include <cstdint>

#include "csrc/sparsifiers/selection.h"

namespace hvd_sparse {

/// Returns a sample of a segment that holds about `hits` of its k largest entries, but no more than
/// an eighth of a large segment.
Span<const float> SampleWith(std::int64_t hits, std::int64_t k, const Selection& selection,
                             std::uint64_t seed = 0);

/// Returns a threshold that about k entries of a segment exceed, estimated from a sample of it; 0
/// if there are fewer non-zeros.
float SampledThreshold(Span<const float> sample, std::int64_t k, const Selection& selection);

/// Returns how many candidates to aim at for an exact top-k: enough that noise leaves k of them.
std::int64_t CandidatesFor(std::int64_t k);

/// Returns the most candidates that there may be.
std::int64_t RoomForCandidates(std::int64_t k, std::int64_t numel);

/// Takes the k largest magnitudes, ties to the lower index, zeros never. Requires that nothing has
/// been taken. Returns how many entries exceed `threshold`; 0 if `threshold` is 0.
///
/// If between k and room() entries exceed `threshold`, one pass finds the result among those. If it
/// is 0 or does not fit, a sample gives another; if that does not fit either (many equal
/// magnitudes), all magnitudes are counted.
std::int64_t TakeTopKAbove(float threshold, std::int64_t k, Selection* selection);

}  // namespace hvd_sparse

/// A lower bound of the k-th largest magnitude of entries that lie on several ranks.
///
/// Each rank sends a digest: its number of entries, and its magnitudes at fixed positions of its
/// descending order (order statistics). From all digests every rank derives the same bound, and at
/// least k entries reach it. Magnitudes are compared as bits, as everywhere else.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

/// Returns the positions (1 = largest) whose magnitudes a digest holds when `size` ranks look for
/// the k largest: 16 up to the share of a rank, k / size, then growing by an eighth, up to k. So
/// about k / 16 entries more than k reach the bound if shares are even, and at most k / 8, give or
/// take one entry per rank.
std::vector<std::int64_t> DigestPositions(std::int64_t k, int size);

/// Scratch memory for sorting; reused.
struct DigestScratch {
  std::vector<std::uint32_t> magnitudes, sorted;
};

/// Returns how many numbers a digest has: the count of entries, then a magnitude for each position.
inline std::int64_t DigestLength(const std::vector<std::int64_t>& positions) {
  return 1 + static_cast<std::int64_t>(positions.size());
}

/// Writes the digest of a block, DigestLength(positions) numbers. A position beyond the block's
/// count holds the smallest magnitude of the block.
void WriteDigest(const SparseBlock& block, const std::vector<std::int64_t>& positions,
                 DigestScratch* scratch, std::uint32_t* digest);

/// Returns why a received digest cannot belong to a bucket of `numel` entries; empty if it can.
std::string ProblemOfDigest(Span<const std::uint32_t> digest, std::int64_t numel);

/// Limits on how many of one rank's entries reach the bound, as every rank can derive them.
struct Share {
  std::int64_t at_least = 0;
  std::int64_t at_most = 0;
};

/// The bound that follows from the digests of all ranks.
struct Bound {
  std::uint32_t magnitude = 0;  ///< bits; 0 where there are fewer than k entries
  std::vector<Share> shares;    ///< one per rank
};

/// Returns the largest bound that the digests of `size` ranks, back to back, promise.
///
/// Ties: of the entries equal to the bound, a rank keeps only those that can still be among the k
/// largest, given that lower ranks have lower indices. A share counts only the entries that a rank
/// keeps (see KeptOf).
Bound FindBound(Span<const std::uint32_t> digests, const std::vector<std::int64_t>& positions,
                int size, std::int64_t k);

/// Returns how many of its largest entries rank `rank` keeps: all above the bound, and of those
/// equal to it the first ones that may count. `scratch` is as WriteDigest left it for the rank's
/// block.
std::int64_t KeptOf(int rank, const Bound& bound, std::int64_t k, const DigestScratch& scratch);

}  // namespace hvd_sparse

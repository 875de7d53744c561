/// A lower bound of the k-th largest magnitude of entries that lie on several ranks.
///
/// Each rank sends a digest: how many entries it has, and the magnitudes at some ranks in its
/// descending order. From all digests every rank derives the same bound, and the bound promises
/// that at least k entries reach it. Magnitudes are compared as bits, like everywhere.

#ifndef HVD_SPARSE_COLLECTIVES_DIGEST_H_
#define HVD_SPARSE_COLLECTIVES_DIGEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

/// The places (1 = largest) whose magnitudes a digest holds, when `size` ranks look for the k
/// largest: 16 up to the share of a rank, k / size, then growing by an eighth, up to k. So about
/// k / 16 entries more than k reach the bound where shares are even, and k / 8 at most, but for one
/// entry per rank.
std::vector<std::int64_t> DigestPlaces(std::int64_t k, int size);

/// Memory for sorting; used again and again.
struct DigestScratch {
  std::vector<std::uint32_t> magnitudes, sorted;
};

/// Numbers in a digest: the count of entries, then a magnitude for each place.
inline std::int64_t DigestLength(const std::vector<std::int64_t>& places) {
  return 1 + static_cast<std::int64_t>(places.size());
}

/// Writes the digest of a block, DigestLength(places) numbers. A place that the block does not have
/// holds the smallest magnitude of the block.
void WriteDigest(const SparseBlock& block, const std::vector<std::int64_t>& places,
                 DigestScratch* scratch, std::uint32_t* digest);

/// Why a received digest is none of a bucket of `numel` entries; empty if it may be one.
std::string ProblemOfDigest(Span<const std::uint32_t> digest, std::int64_t numel);

/// What a rank can tell of the entries of one rank: how many reach the bound.
struct Share {
  std::int64_t at_least = 0;
  std::int64_t at_most = 0;
};

/// What follows from the digests of all ranks.
struct Bound {
  std::uint32_t magnitude = 0;  ///< bits; 0 where there are fewer than k entries
  std::vector<Share> shares;    ///< of each rank
};

/// The largest bound that the digests of `size` ranks, one behind the other, promise.
///
/// Ties: of entries with exactly the magnitude of the bound a rank keeps only those that can still
/// be among the k largest when lower ranks have lower indices. So many entries does a share speak
/// of (see KeptOf).
Bound FindBound(Span<const std::uint32_t> digests, const std::vector<std::int64_t>& places,
                int size, std::int64_t k);

/// How many of its largest entries rank `rank` keeps: all above the bound, and of those equal to it
/// the first ones that may count. `scratch` is as WriteDigest of its block has left it.
std::int64_t KeptOf(int rank, const Bound& bound, std::int64_t k, const DigestScratch& scratch);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DIGEST_H_

/// Split and allgather: the exact k largest entries of the sum, for about 16 k bytes for any P.
///
///     the bucket is cut into P regions; each rank sends every region's entries to its owner;
///     an owner sums its region and drops what cannot be among the k largest of all regions;
///     what is left goes to all ranks, and each of them keeps the k largest
///
/// Rounds: 1 with P - 1 messages, and 2 ceil(log2 P) (a digest of magnitudes, and the entries);
/// every 64 steps ceil(log2 P) more, to recompute the regions; ceil(log2 P) + 1 more where one
/// owner keeps more than twice its share.
/// Sent by each rank: 8 k (P - 1) / P bytes of its own entries and about 8.5 k (P - 1) / P of sums
/// (+ headers, + 4 (P - 1) (17 + 8.5 ln P) of digests): about 16 k bytes for many ranks.
/// Use it where k is large, so that bytes count and messages do not: from four ranks on it sends
/// less than gtopk, and its result is exact.
///
/// The regions hold about equal numbers of selected entries: their boundaries are the quantiles of
/// each rank's selected positions, averaged over the ranks. Entries that are not among the k
/// largest return to the residuals; the sums are complete, so an index is delivered for all ranks
/// or for none. A selection is not trimmed to k first: parts of any length are fine here, the
/// result is cut anyway, and what a rank sends beyond k makes the sum more complete.
///
/// Li and Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022,
/// https://arxiv.org/abs/2201.07598 (Ok-Topk). The paper's threshold is estimated and reused, so
/// its count is approximate; digests, the exact count and the rule for ties are ours.

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/digest.h"

namespace hvd_sparse {
namespace {

/// Shares of fewer entries are not worth balancing: sending 64 kB takes as long as starting a
/// message on the networks at hand.
constexpr std::int64_t kWorthBalancing = 8192;

/// Copies the entries `range` of `from` behind the first `filled` of `to`, which is being written.
void Append(const SparseBlock& from, Range range, std::int64_t filled, SparseBlock* to) {
  const auto count = static_cast<std::size_t>(range.size());
  std::memcpy(to->indices() + filled, from.indices() + range.begin, count * sizeof(Index));
  std::memcpy(to->values() + filled, from.values() + range.begin, count * sizeof(float));
}

/// Makes `to` a finished block of the entries `range` of `from`.
void CopyPart(const SparseBlock& from, Range range, const BlockHeader& identity, SparseBlock* to) {
  to->Reset(range.size());
  Append(from, range, 0, to);
  to->header() = identity;
  to->Finish(range.size());
}

class SplitRun {
 public:
  SplitRun(SparseBlock* block, CollectiveContext* ctx)
      : block_(*block),
        ctx_(*ctx),
        scratch_(ctx->scratch),
        rank_(ctx->comm.Rank()),
        size_(ctx->comm.Size()) {
    const auto ranks = static_cast<std::size_t>(size_);
    if (scratch_.blocks.size() < ranks) scratch_.blocks.resize(ranks);
    if (scratch_.parts.size() < ranks) scratch_.parts.resize(ranks);
  }

  void Run() {
    const bool found = scratch_.regions.size() == static_cast<std::size_t>(size_);
    if (!found || block_.header().step % kStepsBetweenRegions == 0) FindRegions();
    SendToOwners();
    SumRegion();
    const std::int64_t room = DropWhatIsSmall();
    Gather(room);
    ctx_.KeepTopK(&block_, ctx_.k);
    MarkSurvived(&block_);
  }

 private:
  /// Cuts the bucket where the ranks, on average, have selected equal numbers of entries. Ranks
  /// that selected nothing do not count.
  void FindRegions() {
    const std::int64_t count = block_.count();
    std::vector<Index> cuts;
    for (int region = 1; region < size_; ++region) {
      cuts.push_back(count == 0 ? -1 : block_.indices()[count * region / size_]);
    }
    const auto bytes = static_cast<std::int64_t>(cuts.size() * sizeof(Index));
    const auto* all = reinterpret_cast<const Index*>(
        ctx_.AllgatherRecords(cuts.data(), bytes, "split_allgather, regions, round"));

    std::vector<std::int64_t> sums(cuts.size(), 0);
    std::int64_t voices = 0;
    for (int rank = 0; rank < size_; ++rank, all += cuts.size()) {
      const bool silent = std::all_of(all, all + cuts.size(), [](Index cut) { return cut == -1; });
      const bool valid = all[0] >= 0 && std::is_sorted(all, all + cuts.size()) &&
                         all[cuts.size() - 1] < ctx_.numel;
      if (!silent && !valid) Refuse(rank, "regions that do not ascend within the bucket");
      if (silent) continue;
      ++voices;
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all[i];
    }
    scratch_.regions.assign(1, 0);
    for (int region = 1; region < size_; ++region) {
      const std::int64_t cut = voices > 0 ? sums[static_cast<std::size_t>(region) - 1] / voices
                                          : ctx_.numel * region / size_;
      scratch_.regions.push_back(static_cast<Index>(cut));
    }
  }

  /// Returns the range of this rank's entries that lie in a region.
  Range EntriesIn(int region) const {
    const Index* const begin = block_.indices();
    const Index* const end = begin + block_.count();
    const auto first = [&](int r) {
      if (r == size_) return end;
      return std::lower_bound(begin, end, scratch_.regions[static_cast<std::size_t>(r)]);
    };
    return {first(region) - begin, first(region + 1) - begin};
  }

  /// Makes `to` a part of the block, with rounded values; no other rank holds these values yet.
  void CopyNarrow(Range range, SparseBlock* to) {
    CopyPart(block_, range, block_.header(), to);
    ctx_.Narrow(to, /*keeps_errors=*/true);
  }

  /// Sends each region's entries to its owner. Rank r starts with rank r + 1, so that not all ranks
  /// send to the same owner first.
  void SendToOwners() {
    CopyNarrow(EntriesIn(rank_), Of(&scratch_.blocks, rank_));
    for (int first = 1; first < size_; first += kMessagesAtOnce) {
      std::vector<BlockOut> out;
      std::vector<BlockIn> in;
      for (int distance = first; distance < std::min(size_, first + kMessagesAtOnce); ++distance) {
        const int to = (rank_ + distance) % size_, from = (rank_ + size_ - distance) % size_;
        CopyNarrow(EntriesIn(to), Of(&scratch_.parts, to));
        out.push_back({to, Of(&scratch_.parts, to)});
        in.push_back({from, Of(&scratch_.blocks, from), ctx_.capacity});
      }
      ctx_.MoveBlocks(&block_, out, in, "split_allgather, to the owners");
    }
  }

  /// Replaces the block by the sum of this rank's region; keeps its header, with the lowest bad
  /// rank.
  void SumRegion() {
    ctx_.SumInRankOrder(&scratch_.blocks);
    TakeEntriesOf(Of(&scratch_.blocks, 0));
  }

  /// Drops entries that are certainly not among the k largest. Returns the most that any rank
  /// keeps.
  std::int64_t DropWhatIsSmall() {
    const std::vector<std::int64_t> positions = DigestPositions(ctx_.k, size_);
    const std::int64_t length = DigestLength(positions);
    std::vector<std::uint32_t> digest(static_cast<std::size_t>(length));
    WriteDigest(block_, positions, &scratch_.digest, digest.data());
    const auto* all = reinterpret_cast<const std::uint32_t*>(ctx_.AllgatherRecords(
        digest.data(), length * static_cast<std::int64_t>(sizeof(std::uint32_t)),
        "split_allgather, digests, round"));
    for (int rank = 0; rank < size_; ++rank) {
      const std::string problem = ProblemOfDigest({all + rank * length, length}, ctx_.numel);
      if (!problem.empty()) Refuse(rank, problem);
    }
    const Bound bound = FindBound({all, length * size_}, positions, size_, ctx_.k);
    ctx_.KeepTopK(&block_, KeptOf(rank_, bound, ctx_.k, scratch_.digest));

    std::int64_t most = 0, total = 0;
    for (const Share& share : bound.shares) {
      most = std::max(most, share.at_most);
      total += share.at_most;
    }
    if (most < kWorthBalancing || most * size_ <= 2 * total) return most;
    return Balance(bound);
  }

  /// Moves entries between ranks so that each holds an equal slice of all entries, in ascending
  /// order. Returns the length of the longest slice.
  std::int64_t Balance(const Bound& bound) {
    const auto own = static_cast<std::uint32_t>(block_.count());
    const auto* counts = reinterpret_cast<const std::uint32_t*>(
        ctx_.AllgatherRecords(&own, sizeof(own), "split_allgather, counts, round"));
    std::vector<Range> held;
    std::int64_t total = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (counts[rank] > bound.shares[static_cast<std::size_t>(rank)].at_most) {
        Refuse(rank,
               Concat("a claim of ", counts[rank], " entries, more than its digest promised"));
      }
      held.push_back({total, total + counts[rank]});
      total += counts[rank];
    }
    const auto slice = [&](int rank) {
      return Range{total * rank / size_, total * (rank + 1) / size_};
    };
    const Range mine = held[static_cast<std::size_t>(rank_)];
    const auto wanted = [&](int from) {
      return Overlap(held[static_cast<std::size_t>(from)], slice(rank_)).size();
    };

    std::vector<BlockOut> out;
    std::vector<BlockIn> in;
    for (int peer = 0; peer < size_; ++peer) {
      const Range there = Overlap(mine, slice(peer));
      SparseBlock* const part = Of(peer == rank_ ? &scratch_.blocks : &scratch_.parts, peer);
      if (peer == rank_ || there.size() > 0) {
        const std::int64_t first = there.begin - mine.begin;
        const Range range{first, first + there.size()};
        peer == rank_ ? CopyPart(block_, range, block_.header(), part) : CopyNarrow(range, part);
      }
      if (peer == rank_) continue;
      if (there.size() > 0) out.push_back({peer, part});
      if (wanted(peer) > 0) in.push_back({peer, Of(&scratch_.blocks, peer), wanted(peer)});
    }
    ctx_.MoveBlocks(&block_, out, in, "split_allgather, balance");

    const BlockHeader identity = block_.header();
    block_.Reset(slice(rank_).size());
    std::int64_t filled = 0;
    for (int peer = 0; peer < size_; ++peer) {
      const std::int64_t count = wanted(peer);
      if (count == 0) continue;
      const SparseBlock& part = *Of(&scratch_.blocks, peer);
      if (part.count() != count) {
        Refuse(peer, Concat(part.count(), " of ", count, " entries"));
      }
      Append(part, {0, count}, filled, &block_);
      filled += count;
    }
    block_.header() = identity;
    block_.Finish(filled);
    return (total + size_ - 1) / size_;
  }

  /// Gathers the entries of all ranks into the block, in rank order, since regions ascend.
  void Gather(std::int64_t room) {
    ctx_.Narrow(&block_, /*keeps_errors=*/true);  // no other rank holds these sums
    std::vector<SparseBlock>& blocks =
        ctx_.AllgatherBlocks(&block_, room, "split_allgather, gather, round");
    std::int64_t total = 0;
    for (int rank = 0; rank < size_; ++rank) total += Of(&blocks, rank)->count();
    const BlockHeader identity = block_.header();
    block_.Reset(total);
    std::int64_t filled = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const SparseBlock& part = *Of(&blocks, rank);
      Append(part, {0, part.count()}, filled, &block_);
      filled += part.count();
    }
    block_.header() = identity;
    block_.Finish(total);
    try {
      CheckPositions(block_, ctx_.numel);
    } catch (const Error& error) {
      Throw(error.kind(), "in ", ctx_.what, ", the entries of all owners together: ", error.what());
    }
  }

  void TakeEntriesOf(SparseBlock* other) {
    const BlockHeader identity = block_.header();
    const auto [count, verdict] = std::pair(other->header().count, other->header().verdict);
    std::swap(block_, *other);
    block_.header() = identity;
    block_.header().count = count;
    block_.header().verdict.Note(verdict);
  }

  [[noreturn]] void Refuse(int peer, const std::string& sent) const {
    Throw(ErrorKind::kExchangeFailed, "in ", ctx_.what, " rank ", ctx_.comm.RankInExchange(peer),
          " sent ", sent);
  }

  static SparseBlock* Of(std::vector<SparseBlock>* blocks, int rank) {
    return &(*blocks)[static_cast<std::size_t>(rank)];
  }

  SparseBlock& block_;
  CollectiveContext& ctx_;
  CollectiveScratch& scratch_;
  const int rank_, size_;
};

}  // namespace

void RunSplitAllgather(SparseBlock* block, CollectiveContext& ctx) {
  if (ctx.comm.Size() == 1) return MarkSurvived(block);
  SplitRun(block, &ctx).Run();
}

}  // namespace hvd_sparse

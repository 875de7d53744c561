#include "csrc/collectives/shard_sum.h"

#include <algorithm>
#include <utility>

#include "csrc/collectives/topology.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

/// The most entries of a piece, whose values and code fit the second-level cache.
constexpr std::int64_t kPieceNumel = std::int64_t{64} * 1024;

/// The fewest entries of a chunk: with shorter ones, handing them over takes longer than the rest.
constexpr std::int64_t kLeastChunk = std::int64_t{16} * 1024;

/// The fewest entries of a piece of which there is a row for each rank.
constexpr std::int64_t kLeastRow = 4096;

std::int64_t DivideUp(std::int64_t numerator, std::int64_t denominator) {
  return (numerator + denominator - 1) / denominator;
}

/// Returns the entries of a piece of which a row for each rank fits the second-level cache.
std::int64_t NumelOfRows(int ranks) {
  return std::max(kLeastRow, kPieceNumel / ranks / kLeastRow * kLeastRow);
}

std::unique_ptr<RobustAverage> RobustAverageOf(Aggregation aggregation, int size) {
  const bool is_sum = aggregation.rule == nullptr || size == 1;
  return is_sum ? nullptr : std::make_unique<RobustAverage>(aggregation, size);
}

}  // namespace

ShardSum::ShardSum(std::int64_t numel, const std::vector<std::int64_t>& cuts, DenseFormat format,
                   int rank, int size, std::unique_ptr<DenseWork> work, Aggregation aggregation)
    : numel_(numel),
      format_(format),
      rank_(rank),
      size_(size),
      work_(std::move(work)),
      robust_(RobustAverageOf(aggregation, size)) {
  const std::int64_t peers = std::max(1, size - 1);
  const std::int64_t piece_numel = robust_ == nullptr ? kPieceNumel : NumelOfRows(size);
  const std::int64_t share =
      kRoundBytes / peers * kPieceNumel / MostCodeBytes(format.values, kPieceNumel);
  chunk_numel_ = std::max(kLeastChunk, share / kLeastChunk * kLeastChunk);
  chunks_ = static_cast<int>(DivideUp(LongestShard(numel, size), chunk_numel_));

  std::int64_t bytes = 0;
  auto cut = cuts.begin();
  for (int owner = 0; owner < size; ++owner) {
    const Range shard = ShardOf(numel, owner, size);
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      first_piece_.push_back(pieces_.size());
      message_at_.push_back(bytes);
      if (owner != rank) bytes += kHeaderBytes;
      const std::int64_t begin = shard.begin + chunk * chunk_numel_;
      Range left = Overlap(shard, {begin, begin + chunk_numel_});
      while (left.size() > 0) {
        while (cut != cuts.end() && *cut <= left.begin) ++cut;
        std::int64_t end = std::min(left.end, left.begin + piece_numel);
        if (cut != cuts.end()) end = std::min(end, *cut);
        const Range range{left.begin, end};
        pieces_.push_back({range, owner == rank ? range.begin - shard.begin : bytes});
        if (owner != rank) bytes += MostCodeBytes(format.values, range.size());
        left.begin = end;
      }
    }
  }
  first_piece_.push_back(pieces_.size());
  message_at_.push_back(bytes);
  taken_.resize(pieces_.size());
  parts_.resize(static_cast<std::size_t>(KeepsParts() ? chunks_ : std::min(chunks_, kSlots)));
  if (KeepsParts()) {
    distances_ = std::make_unique<ShardSum>(static_cast<std::int64_t>(size) * (size - 1) / 2,
                                            std::vector<std::int64_t>(), DenseFormat(), rank, size);
  }
}

bool ShardSum::KeepsParts() const { return robust_ != nullptr && robust_->ChoosesRanks(); }

Range ShardSum::Shard(int owner) const { return ShardOf(numel_, owner, size_); }

/// Returns the place of a chunk in first_piece_ and message_at_.
std::size_t ShardSum::PlaceOf(int owner, int chunk) const {
  return static_cast<std::size_t>(owner) * static_cast<std::size_t>(chunks_) +
         static_cast<std::size_t>(chunk);
}

Span<const ShardSum::Piece> ShardSum::PiecesOf(int owner, int chunk) const {
  const std::size_t place = PlaceOf(owner, chunk);
  return {pieces_.data() + first_piece_[place],
          static_cast<std::int64_t>(first_piece_[place + 1] - first_piece_[place])};
}

std::int64_t ShardSum::MostBytes(int owner, int chunk) const {
  std::int64_t bytes = kHeaderBytes;
  for (const Piece& piece : PiecesOf(owner, chunk)) {
    bytes += MostCodeBytes(format_.values, piece.range.size());
  }
  return bytes;
}

void ShardSum::Prepare() {
  std::int64_t longest_piece = 0;
  for (const Piece& piece : pieces_) longest_piece = std::max(longest_piece, piece.range.size());
  work_->Prepare({format_.values, numel_, static_cast<std::int64_t>(pieces_.size()), longest_piece,
                  message_at_.back(), Shard(rank_).size()});
  if (distances_ != nullptr) distances_->Prepare();
  if (size_ == 1 || chunks_ == 0) return;
  std::int64_t most = 0;
  for (int chunk = 0; chunk < chunks_; ++chunk) most = std::max(most, MostBytes(rank_, chunk));
  const auto ranks = static_cast<std::size_t>(size_);
  for (std::vector<Buffer>& parts : parts_) {
    parts.resize(ranks);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) parts[static_cast<std::size_t>(peer)].Reserve(most);
    }
  }
  for (int slot = 0; slot < std::min(chunks_, kSlots); ++slot) {
    sums_[slot].resize(ranks);
    own_sum_[slot].Reserve(most);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto at = static_cast<std::size_t>(peer);
      std::int64_t longest = 0;
      for (int chunk = slot; chunk < chunks_; chunk += kSlots) {
        longest = std::max(longest, MostBytes(peer, chunk));
      }
      sums_[slot][at].Reserve(longest);
    }
  }
}

bool ShardSum::IsOwn(const Piece& piece) const {
  return Overlap(Shard(rank_), piece.range).size() > 0;
}

std::int64_t ShardSum::Take(Span<float> values) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Range range = pieces_[i].range;
    taken_[i].feedback = {{}, 1, 1, values.Sub(range.begin, range.size())};
  }
  return TakeAll();
}

std::int64_t ShardSum::AccumulateAndTake(Span<const Feedback> feedback) {
  for (std::size_t i = 0; i < pieces_.size(); ++i) taken_[i].feedback = feedback.data[i];
  return TakeAll();
}

std::int64_t ShardSum::TakeAll() {
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const bool is_own = IsOwn(piece);
    taken_[i].begin = piece.range.begin;
    taken_[i].own = is_own ? work_->own() + piece.room_at : nullptr;
    taken_[i].code = is_own ? nullptr : work_->codes() + piece.room_at;
  }
  return work_->Take(format_, taken_);
}

void ShardSum::PutBack(Span<float> values) { work_->PutBack(format_, taken_, values); }

}  // namespace hvd_sparse

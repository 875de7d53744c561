/// Shard sum: the dense sum of all ranks' values.
///
///     the bucket is cut into P shards; each rank sends every shard's values to its owner;
///     an owner adds up its shard in rank order, and sends the sum to all ranks
///
/// Both halves travel in chunks: while a chunk is in flight, the one before it is added up, and the
/// sum before that is written. Only owners add, so all ranks get the same bits.
/// Messages of each rank: 2 (P - 1) for every chunk.
/// Sent by each rank: 2 d (P - 1) / P values (+ headers), which is a ring's bound.
/// Use it where values of few bits make a dense exchange fast enough, or where the host's own dense
/// sum does not reach the speed of the links.
///
/// Values of few bits: what a rank sends leaves its values, and the rounding errors stay there. An
/// owner's own values are not rounded before they are added; the error of the sum stays with the
/// owner. So each error is kept by exactly one rank, nothing is rounded per hop, and
///
///     the values of all ranks before = the sum + the values of all ranks after, exactly
///
/// In place of the sum, an owner may average its shard by a rule that bad ranks cannot steer
/// (aggregation_rule.h); the result is the average times P. Then the law does not hold: what was
/// left out, and the rounding error of the average, is gone. A rule that chooses ranks by their
/// distances needs all of them first: owners sum these, in one more small shard sum, between the
/// two halves.
///
/// Chunks that overlap: Wang et al., "Efficient communications in training large scale neural
/// networks", 2016, https://arxiv.org/abs/1611.04255 (Linear Pipelining), whose chain became P
/// shards here.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/types.h"
#include "csrc/collectives/robust_average.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/wire/dense_work.h"

namespace hvd_sparse {

/// Bytes that a rank sends to all others in a transfer: chunks are cut to that. TCP's streams share
/// a link unevenly; at the end those that lag, by as much as the chunks in flight, have it alone.
inline constexpr std::int64_t kRoundBytes = std::int64_t{1} << 20;

/// The sum of one bucket, and the memory of its messages. A step: Take, then Run.
class ShardSum {
 public:
  /// Receives a part of the sum, on a thread that runs beside the messages. Parts come in any
  /// order; together they are the bucket.
  using Write = std::function<void(Range, Span<const float> sums)>;

  /// Equal on all ranks, but for `rank` and `work`, that of the device where the values lie. No
  /// values on both sides of one of the `cuts`, which ascend, share a scale.
  ShardSum(std::int64_t numel, const std::vector<std::int64_t>& cuts, DenseFormat format, int rank,
           int size, std::unique_ptr<DenseWork> work = NewCpuDenseWork(),
           Aggregation aggregation = {});

  /// The bucket is taken piece by piece: a piece is coded on its own, and stays in the cache.
  std::size_t pieces() const { return pieces_.size(); }
  Range range(std::size_t piece) const { return pieces_[piece].range; }

  /// Allocates the memory of all messages, unless that has been done.
  void Prepare();

  /// Moves values, which are finite, to the messages; their rounding errors remain. Needs Prepare;
  /// does not fail. Returns the number of values that the format does not carry.
  std::int64_t Take(Span<float> values);

  /// Like Take of a residual, but applies error feedback first, in the same pass; `feedback` has
  /// that of each piece. Returns the number of results that were not finite, or that the
  /// format does not carry.
  std::int64_t AccumulateAndTake(Span<const Feedback> feedback);

  /// Sums what all ranks have taken. `values` is what was left of this rank's bucket: the error of
  /// the sum is added to the own shard, where nothing was left. `identity` is the header of this
  /// rank's messages, and gets the worst verdict of all ranks. If a sum overflows, zero takes its
  /// place, and the verdict says so.
  void Run(Span<float> values, const Write& write, BlockHeader* identity, CollectiveContext* ctx);

  /// Undoes the step: returns all that was taken to what was left of it, bit for bit.
  void PutBack(Span<float> values);

  /// The averages that this rank forms; null if it adds up.
  const RobustAverage* robust() const { return robust_.get(); }

  /// Entries of the own shard.
  std::int64_t OwnNumel() const { return Shard(rank_).size(); }

  /// The work on the values' memory, which writes sums in a Write.
  DenseWork& work() { return *work_; }

 private:
  class Step;

  static constexpr int kSlots = 3;
  static constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(BlockHeader));

  /// Values of one shard and one chunk, coded together.
  struct Piece {
    Range range;
    std::int64_t room_at = 0;  // for its longest code in codes(); of the own shard: in own()
  };

  /// True if all parts of the own shard are kept: ranks are chosen before one is averaged.
  bool KeepsParts() const;
  Range Shard(int owner) const;
  bool IsOwn(const Piece& piece) const;
  std::int64_t TakeAll();
  std::size_t PlaceOf(int owner, int chunk) const;
  Span<const Piece> PiecesOf(int owner, int chunk) const;
  std::int64_t MostBytes(int owner, int chunk) const;

  const std::int64_t numel_;
  const DenseFormat format_;
  const int rank_, size_;
  int chunks_ = 0;
  std::int64_t chunk_numel_ = 0;
  std::vector<Piece> pieces_;                    // by owner, then by chunk
  std::vector<std::size_t> first_piece_;         // of each owner and chunk, and past the last one
  std::vector<std::int64_t> message_at_;         // likewise, in codes(); its header comes first
  const std::unique_ptr<DenseWork> work_;        // codes(): all messages to owners
  const std::unique_ptr<RobustAverage> robust_;  // null: the sum
  std::unique_ptr<ShardSum> distances_;          // summed over all shards, if ranks are chosen
  std::vector<DensePiece> taken_;  // pieces of this step; codes are moved before they are sent

  // Memory of messages, by chunk modulo kSlots, since that many are in flight: from each rank its
  // part of the own shard, and its own shard's sum; and the sum for all ranks. Parts are kept until
  // ranks are chosen.
  std::vector<std::vector<Buffer>> parts_;
  std::vector<Buffer> sums_[kSlots];
  Buffer own_sum_[kSlots];
};

}  // namespace hvd_sparse

/// The layout of a step: which pieces form a bucket, where their memory lies, and in which order
/// buckets start.

#ifndef HVD_SPARSE_EXCHANGE_STEP_LAYOUT_H_
#define HVD_SPARSE_EXCHANGE_STEP_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hvd_sparse {

/// Gradients that are handed over together. The pieces' parts of residual, states and velocity
/// follow each other, in the order of the pieces.
struct Piece {
  std::int64_t numel = 0;  ///< of all its gradients, and of its part of residual and velocity

  /// Number of units of selection. 0: the piece always passes, and has a velocity, but no residual.
  std::int64_t segments = 0;

  std::int64_t owed() const { return segments == 0 ? 0 : numel; }
};

/// Consecutive pieces that are exchanged together, and their constants.
struct DrivenBucket {
  static constexpr int kPasses = -1;

  int bucket = 0;  ///< from Exchange::AddBucket, or kPasses
  float scale = 1, output_scale = 1;

  /// Pairs of a first step, counted from 0 and ascending, and the k of every segment from that step
  /// on. Unused for a bucket that passes.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> ks;

  int pieces = 1;

  bool passes() const { return bucket == kPasses; }
  const std::vector<std::int64_t>& KsAt(std::int64_t step) const;
};

class StepLayout {
 public:
  /// Offsets of a piece's parts; the offsets past the last piece are the total sizes.
  struct Begin {
    std::int64_t residual = 0, state = 0, velocity = 0;
  };

  explicit StepLayout(std::vector<Piece> pieces);

  /// Throws InvalidArgument unless `sizes` are those of a step's memory; without `velocities`, that
  /// of the velocity must be 0.
  void RequireFit(const Begin& sizes, bool velocities) const;

  /// Replaces the buckets, which have all pieces and start in this order. Throws InvalidArgument if
  /// they do not fit; nothing has changed then.
  void Adopt(std::vector<DrivenBucket> buckets);

  /// Starts the same buckets in another order.
  void Reorder(const std::vector<int>& order);

  std::size_t size() const { return pieces_.size(); }
  const Piece& piece(std::size_t number) const { return pieces_[number]; }
  const Begin& begin(std::size_t piece) const { return begins_[piece]; }
  const Begin& end() const { return begins_.back(); }

  std::size_t buckets() const { return buckets_.size(); }
  const DrivenBucket& bucket(std::size_t number) const { return buckets_[number]; }
  const DrivenBucket& bucket_of(std::size_t piece) const { return buckets_[bucket_of_[piece]]; }

  /// The number of the bucket at this place in the starting order.
  std::size_t at(std::size_t place) const { return order_[place]; }

  /// The pieces of a bucket: its first, and the one after its last.
  std::pair<std::size_t, std::size_t> PiecesOf(std::size_t bucket) const {
    return {first_piece_[bucket], first_piece_[bucket + 1]};
  }

  /// True if a step of these buckets has anything to commit: not all pass.
  bool Exchanges() const;

  /// Returns how many pieces with units of selection pass.
  std::size_t Passing() const;

  /// Elements of all pieces that pass, and of those before one of them.
  std::int64_t PassingNumel() const { return passed_before_.back(); }
  std::int64_t PassedBefore(std::size_t piece) const { return passed_before_[piece]; }

 private:
  const std::vector<Piece> pieces_;
  std::vector<Begin> begins_;  // of each piece, and past the last one
  std::vector<DrivenBucket> buckets_;
  std::vector<std::size_t> first_piece_;     // of each bucket, and past the last one
  std::vector<std::size_t> bucket_of_;       // of each piece
  std::vector<std::int64_t> passed_before_;  // elements that pass, of each piece and past the last
  std::vector<std::size_t> order_;           // the buckets in starting order
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_LAYOUT_H_

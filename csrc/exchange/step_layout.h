/// The layout of a step: which ops form a bucket, where their memory lies, and in which order
/// buckets start.

#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace hvd_sparse {

/// The gradients of an op: those that are handed over together. The ops' parts of residual, states
/// and velocity follow each other, in the order of the ops.
struct OpGradients {
  std::int64_t numel = 0;  ///< of all its gradients, and of its part of residual and velocity

  /// Number of units of selection. 0: the op is always sent dense, and has a velocity, but no
  /// residual.
  std::int64_t segments = 0;

  std::int64_t ResidualNumel() const { return segments == 0 ? 0 : numel; }

  /// Converts pairs of numel and segments.
  static std::vector<OpGradients> Of(
      const std::vector<std::pair<std::int64_t, std::int64_t>>& pairs);
};

/// Consecutive ops that are exchanged together, and their constants.
struct DrivenBucket {
  static constexpr int kDense = -1;

  int bucket = 0;  ///< from Exchange::AddBucket, or kDense
  float scale = 1, output_scale = 1;

  /// Pairs of a first step, counted from 0 and ascending, and the k of every segment from that step
  /// on. Unused for a bucket that is sent dense.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> ks;

  int ops = 1;

  bool is_dense() const { return bucket == kDense; }
};

class StepLayout {
 public:
  /// Offsets of an op's parts; the offsets past the last op are the total sizes.
  struct Begin {
    std::int64_t residual = 0, state = 0, velocity = 0;
  };

  explicit StepLayout(std::vector<OpGradients> ops);

  /// Throws InvalidArgument unless `sizes` are those of a step's memory; without `velocities`, that
  /// of the velocity must be 0.
  void RequireFit(const Begin& sizes, bool velocities) const;

  /// Replaces the buckets, which have all ops and start in this order. Throws InvalidArgument if
  /// they do not fit; nothing has changed then.
  void Adopt(std::vector<DrivenBucket> buckets);

  /// Starts the same buckets in another order.
  void Reorder(const std::vector<int>& order);

  std::size_t size() const { return ops_.size(); }
  const OpGradients& op(std::size_t number) const { return ops_[number]; }
  const Begin& begin(std::size_t op) const { return begins_[op]; }
  const Begin& end() const { return begins_.back(); }

  std::size_t buckets() const { return buckets_.size(); }
  const DrivenBucket& bucket(std::size_t number) const { return buckets_[number]; }
  std::size_t number_of(std::size_t op) const { return bucket_of_[op]; }  ///< of its bucket
  const DrivenBucket& bucket_of(std::size_t op) const { return buckets_[number_of(op)]; }

  /// All buckets in starting order.
  const std::vector<std::size_t>& order() const { return order_; }

  /// Returns the buckets of some ops, all of each bucket's, in starting order. Throws
  /// InvalidArgument if there are no such ops, or some of a bucket are missing.
  std::vector<std::size_t> OrderOf(const std::set<int>& ops) const;

  /// The ops of a bucket: its first, and the one after its last.
  std::pair<std::size_t, std::size_t> OpsOf(std::size_t bucket) const {
    return {first_op_[bucket], first_op_[bucket + 1]};
  }

  /// True if a step of these buckets has anything to commit: not all are sent dense.
  bool Exchanges() const;

  /// Returns how many ops with units of selection are sent dense.
  std::size_t DenseOps() const;

  /// Elements of all ops that are sent dense, and of those before one of them.
  std::int64_t DenseNumel() const { return dense_before_.back(); }
  std::int64_t DenseBefore(std::size_t op) const { return dense_before_[op]; }

 private:
  const std::vector<OpGradients> ops_;
  std::vector<Begin> begins_;  // of each op, and past the last one
  std::vector<DrivenBucket> buckets_;
  std::vector<std::size_t> first_op_;       // of each bucket, and past the last one
  std::vector<std::size_t> bucket_of_;      // of each op
  std::vector<std::int64_t> dense_before_;  // dense elements before each op, and of all
  std::vector<std::size_t> order_;          // the buckets in starting order
};

}  // namespace hvd_sparse

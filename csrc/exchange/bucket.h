/// One bucket on its way through a step: accumulate, select, allreduce, settle, scatter.
///
/// A bucket holds scratch memory and the plan, never state: residuals and thresholds belong to the
/// framework and are passed in at every step.

#ifndef HVD_SPARSE_EXCHANGE_BUCKET_H_
#define HVD_SPARSE_EXCHANGE_BUCKET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

/// What never changes about a bucket; the same on every rank.
struct BucketSpec {
  std::string name;                           ///< for errors and statistics
  std::vector<std::int64_t> gradient_numels;  ///< in the order of the residual
  std::vector<std::int64_t> segment_numels;   ///< units of selection; the same total
  std::vector<std::int64_t> max_ks;           ///< largest k of every segment, bounds the memory
  std::string sparsifier;
  SparsifierOptions sparsifier_options;
  std::string collective;
  CollectiveOptions collective_options = {};
  WireFormat wire = {};
};

/// What a step brings. The memory must outlive the step.
struct Launch {
  std::vector<GradView> gradients;  ///< read now, written with the result
  Span<float> residual;             ///< of the whole bucket
  Span<SelectionState> states;      ///< one per segment
  std::vector<std::int64_t> ks;     ///< one per segment, the same on every rank
  std::vector<float> decays;        ///< of the residual, one per gradient
  float scale = 1;                  ///< of the gradient, when it joins the residual
  float output_scale = 1;           ///< of the sum, when it becomes the gradient
};

/// What became of a bucket in a step.
struct BucketStats {
  std::int64_t step = 0;
  std::int64_t numel = 0;
  std::int64_t asked = 0;     ///< entries: the sum of the ks
  std::int64_t selected = 0;  ///< entries that this rank sent
  std::int64_t reduced = 0;   ///< entries of the sum
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double select_seconds = 0;    ///< accumulate and select
  double exchange_seconds = 0;  ///< allreduce, settle and scatter

  // When, in seconds of std::chrono::steady_clock. From select_end to exchange_begin the bucket
  // waits for those before it.
  double select_begin = 0, select_end = 0;
  double exchange_begin = 0, settle_begin = 0, exchange_end = 0;
  std::vector<RoundTimes> rounds;  ///< of the collective, between exchange_begin and settle_begin
};

class Bucket {
 public:
  /// Throws InvalidArgument if the numbers do not fit together.
  Bucket(int id, BucketSpec spec);

  const BucketSpec& spec() const { return spec_; }
  std::int64_t numel() const { return numel_; }
  const BucketStats& stats() const { return stats_; }

  /// Throws InvalidArgument, before anything is touched, if the launch does not fit the plan.
  void Validate(const Launch& launch) const;

  /// Adds the gradients to the residual and moves what is selected from there to a block; the
  /// gradients are free afterwards.
  void Select(Launch launch, int rank, const Kernels& kernels);

  /// Exchanges the selection, puts back what was not delivered and writes the result into the
  /// gradients.
  void Reduce(Communicator& comm, const Kernels& kernels);

  /// The lowest rank whose gradient was not finite, or kNoRank. Valid after Reduce, as below.
  std::int32_t bad_rank() const { return reduced_.header().bad_rank; }

  /// How many results were not finite in the number type of their gradient.
  std::int64_t overflows() const { return overflows_; }

  /// Puts back all that was selected: the residual is what it was after error feedback, bit for
  /// bit. Nothing was applied, so nothing is lost.
  void PutBack(const Kernels& kernels);

 private:
  /// The part of a gradient that lies in a segment.
  struct Piece {
    std::size_t gradient;
    std::int64_t begin, size;
  };

  static std::vector<std::vector<Piece>> Cut(const BucketSpec& spec);
  Feedback FeedbackOf(const Piece& piece, Span<float> residual) const;

  int id_;
  BucketSpec spec_;
  std::int64_t numel_ = 0;
  std::int64_t capacity_ = 0;               // of the selected block
  std::int64_t room_ = 0;                   // of the same while a segment is being selected
  std::vector<std::vector<Piece>> pieces_;  // by segment
  const std::unique_ptr<const Sparsifier> sparsifier_;
  const SparseAllreduce& collective_;

  Launch launch_;
  SparseBlock selected_, reduced_;
  CollectiveScratch scratch_;
  std::vector<std::pair<Index, float>> rounded_;  // residuals before they took rounding errors
  std::int64_t overflows_ = 0;
  std::int64_t steps_ = 0;
  BucketStats stats_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_BUCKET_H_

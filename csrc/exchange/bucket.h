/// One bucket on its way through a step: accumulate, select, allreduce, settle, scatter.
///
/// Where the collective sums nodes first, accumulating is all that Select does; then Reduce adds up
/// the node's residuals, and the rest happens to this rank's shard of them, until Commit.
///
/// Where momentum is corrected, gradients join a velocity of this rank's own, and the velocity
/// joins the residual; what a step delivers leaves both (momentum factor masking: Lin et al., ICLR
/// 2018).
///
/// Where the whole step is given to a device (bucket_step.cc), GiveSelection, Give and StepArrived
/// are in place of Select and Reduce.
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
#include "csrc/collectives/device_network.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/bucket_spec.h"
#include "csrc/exchange/node_sum.h"
#include "csrc/exchange/segments.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// What became of a bucket in a step.
struct BucketStats {
  std::int64_t step = 0;
  Route route = Route::kCalls;
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
  /// Throws InvalidArgument if the numbers do not fit together. `place` counts where the collective
  /// sums nodes first.
  Bucket(int id, BucketSpec spec, NodePlace place = {});

  int id() const { return id_; }
  const BucketSpec& spec() const { return spec_; }
  std::int64_t numel() const { return numel_; }
  const BucketStats& stats() const { return stats_; }

  /// Throws InvalidArgument, before anything is touched, if the launch does not fit the plan.
  void Validate(const Launch& launch) const { CheckLaunch(spec_, launch); }

  /// Adds the gradients to the residual and moves what is selected from there to a block; the
  /// gradients are free afterwards. Where it throws, all gradients have been added, and nothing is
  /// selected; or nothing has happened.
  void Select(Launch launch, int rank, const Kernels& kernels);

  /// Exchanges the selection, puts back what was not delivered, takes the velocity of what was, and
  /// writes the result into the gradients. `network` is there on all ranks, where their route is
  /// kRounds, or on none.
  void Reduce(Communicator& comm, const Kernels& kernels, DeviceNetwork* network = nullptr);

  /// Where the route is kStep: takes the memory that all steps need of the network's device, once.
  /// Before the first one is compared, so that nobody waits for a rank that could not.
  void PrepareSteps(DeviceNetwork* network);
  bool IsPreparedForSteps() const { return device_step_ != nullptr; }

  /// Then, in place of Select: gives the device the selection, which begins behind `ready`.
  void GiveSelection(Launch launch, const Kernels& kernels, const Mark* ready);

  /// And in place of Reduce: compares with all ranks what is about to be done, and gives the device
  /// the rest (see DeviceStep::Exchange for who waits). Returns the end of the step.
  std::shared_ptr<const Mark> Give(Communicator& comm, const Kernels& kernels);

  /// Waits at most `seconds` for the end of that step; returns whether it is over.
  bool StepArrived(double seconds);

  /// The network is about to go. Waits for the device.
  void LeaveDevices();

  /// As in BlockHeader, the same on all ranks. Valid after Reduce, or when the step has arrived.
  std::int32_t bad_rank() const { return reduced_.header().bad_rank; }

  /// Why no rank applies the step, the same on all ranks; empty where nothing is wrong. Valid as
  /// bad_rank().
  std::string Problem() const;

  /// How many results were not finite in the number type of their gradient.
  std::int64_t overflows() const { return overflows_; }

  /// Puts back all that was taken: the residual, and the velocity, are what they were after error
  /// feedback, bit for bit. Nothing was applied, so nothing is lost. Of a step that was given to a
  /// device, at any time.
  void PutBack(const Kernels& kernels);

  /// The step counts: the residual is what this rank has yet to send, and the velocity of what was
  /// delivered is zero. Valid after Reduce. Does not fail: others may have committed.
  void Commit();

 private:
  /// The part of a gradient that lies in a segment.
  struct Piece {
    std::size_t gradient;
    std::int64_t begin, size;
  };

  static std::vector<std::vector<Piece>> Cut(const BucketSpec& spec);
  void Begin(Launch launch);
  Span<const Feedback> FeedbackOf(std::size_t segment, Span<float> residual);
  std::int64_t Accumulate(const Kernels& kernels);
  std::int64_t JoinVelocity(const Kernels& kernels);
  void MaskVelocity(const Kernels& kernels);
  std::int32_t BadRank(int rank, const Kernels& kernels) const;

  BlockHeader Identity() const;
  CollectiveContext ContextOf(Communicator& comm, const Kernels& kernels, WireFormat wire);
  void AddUp(CollectiveContext* ctx);
  void ReduceBetween(Communicator& comm, Span<float> residual, const Kernels& kernels);
  void ReduceOverNodes(Communicator& comm, const Kernels& kernels);
  void RequireKnown(int rank) const;
  void Scatter(Range range, Span<float> residual, int owners, const Kernels& kernels);

  int id_;
  BucketSpec spec_;
  std::int64_t numel_ = 0;
  std::vector<std::vector<Piece>> pieces_;  // by segment
  const std::unique_ptr<const Sparsifier> sparsifier_;
  const SparseAllreduce& collective_;

  std::unique_ptr<NodeSum> node_;  // where nodes are summed first
  Segments segments_;              // of the bucket, or of this rank's shard
  std::int64_t gather_room_ = 0;   // the most entries that a shard of the node delivers

  Launch launch_;
  std::vector<GradView> inflow_;  // what joins the residual: the gradients, or the velocity
  float inflow_scale_ = 1;
  std::vector<Feedback> feedback_;  // of a segment, with room for that of any
  std::int32_t bad_rank_ = kNoRank;
  SparseBlock selected_, reduced_;
  bool settled_ = false;    // whether entries that were selected may have stayed
  SparseBlock masked_;      // velocities of what was selected, until the step has ended
  bool is_masked_ = false;  // whether they have been taken
  std::unique_ptr<DeviceReduce> device_reduce_;  // in place of the collective, where there is one
  std::unique_ptr<DeviceStep> device_step_;      // in place of all, where there is one
  bool is_given_ = false;                        // of this step, whether that one has its entries
  CollectiveScratch scratch_;
  std::vector<std::pair<Index, float>> rounded_;  // residuals before they took rounding errors
  std::int64_t overflows_ = 0;
  std::int64_t steps_ = 0;
  BucketStats stats_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_BUCKET_H_

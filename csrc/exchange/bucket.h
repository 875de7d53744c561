/// A bucket and its part in a step: accumulate, select, allreduce, settle, scatter.
///
/// If the collective sums nodes first, Select only accumulates; Reduce then adds up the node's
/// residuals, and the rest of the step works on this rank's shard of the sum, until Commit.
///
/// With momentum correction, gradients are added to a velocity of this rank, and the velocity to
/// the residual; delivered entries are removed from both (momentum factor masking: Lin et al., ICLR
/// 2018).
///
/// If all entries are summed dense, a DenseStep replaces selection and collective.
///
/// If the whole step is enqueued on a device (bucket_step.cc), EnqueueSelection, Enqueue and
/// StepArrived replace Select and Reduce.
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
#include "csrc/base/verdict.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/collectives/gpu_collectives.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/dense_step.h"
#include "csrc/exchange/node_sum.h"
#include "csrc/exchange/segments.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// Statistics of a bucket in one step.
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

  // Times in seconds of std::chrono::steady_clock. From select_end to exchange_begin the bucket
  // waits for those before it.
  double ready = 0;  ///< the last gradient came
  double select_begin = 0, select_end = 0;
  double exchange_begin = 0, settle_begin = 0, exchange_end = 0;
  std::vector<RoundTimes> rounds;  ///< of the collective, between exchange_begin and settle_begin
};

class Bucket {
 public:
  /// Throws InvalidArgument if the numbers do not fit together. `place` matters only if the
  /// collective sums nodes first, or sums dense.
  Bucket(int id, BucketSpec spec, NodePlace place = {});

  int id() const { return id_; }
  const BucketSpec& spec() const { return spec_; }
  std::int64_t numel() const { return numel_; }
  const BucketStats& stats() const { return stats_; }

  /// Throws InvalidArgument, before anything is touched, if the launch does not fit the plan.
  void Validate(const Launch& launch) const { CheckLaunch(spec_, launch); }

  /// Adds the gradients to the residual and moves the selected entries from there to a block; the
  /// gradients may be overwritten afterwards. If it throws, either all gradients have been added
  /// and nothing is selected, or nothing has happened.
  void Select(Launch launch, int rank, const Kernels& kernels);

  /// Exchanges the selection, puts back entries that were not delivered, masks the velocity of
  /// those that were, and writes the result into the gradients. `gpu_collectives` is non-null on
  /// all ranks, if their route is kRounds, or on none.
  void Reduce(Communicator& comm, const Kernels& kernels,
              GpuCollectives* gpu_collectives = nullptr);

  /// For route kStep: allocates, once, the memory that all steps need on the network's device.
  /// Called before the ranks compare their first step, so that none waits for a rank that has no
  /// memory.
  void PrepareSteps(GpuCollectives* gpu_collectives);
  bool IsPreparedForSteps() const { return device_step_ != nullptr; }

  /// For route kStep, in place of Select: enqueues the selection on the device, to begin after
  /// `ready`.
  void EnqueueSelection(Launch launch, const Kernels& kernels, const Mark* ready);

  /// For route kStep, in place of Reduce: compares headers with all ranks and enqueues the rest on
  /// the device (see DeviceStep::Exchange for when it waits). Returns a mark at the end of the
  /// step.
  std::shared_ptr<const Mark> Enqueue(Communicator& comm, const Kernels& kernels);

  /// Waits at most `seconds` for the end of that step; returns true if it has ended.
  bool StepArrived(double seconds);

  /// Waits for the device and frees its memory, before the network is destroyed.
  void ReleaseDevices();

  /// The verdict on the step, equal on all ranks. Valid after Reduce, or when the step has arrived.
  Verdict verdict() const { return reduced_.header().verdict; }

  /// Returns why no rank applies the step, equal on all ranks; empty if nothing is wrong. Valid
  /// when verdict() is.
  std::string Problem() const;

  /// The number of results that are not finite in the number type of their gradient.
  std::int64_t overflows() const { return overflows_; }

  /// Puts back all entries that were taken: residual and velocity are then what they were after
  /// error feedback, bit for bit. Nothing was applied, so nothing is lost. A step that was enqueued
  /// on a device can be put back at any time.
  void PutBack(const Kernels& kernels);

  /// Commits the step: the residual is what this rank has yet to send, and the velocity of
  /// delivered entries is zero. Valid after Reduce. Does not fail: other ranks may have committed.
  void Commit();

 private:
  struct NodeGroups;

  /// The part of a gradient that lies in a segment.
  struct GradientSlice {
    std::size_t gradient;
    std::int64_t begin, size;
  };

  static std::vector<std::vector<GradientSlice>> Cut(const BucketSpec& spec);
  void Begin(Launch launch);
  Span<const Feedback> FeedbackOf(std::size_t segment, Span<float> residual);
  std::int64_t Accumulate(const Kernels& kernels);
  std::int64_t JoinVelocity(const Kernels& kernels);
  void MaskVelocity(const Kernels& kernels);
  GradientFault Fault(const Kernels& kernels) const;

  BlockHeader Identity() const;
  CollectiveContext ContextOf(Communicator& comm, const Kernels& kernels, WireFormat wire);
  void AddUp(CollectiveContext* ctx);
  void ReduceBetween(Communicator& comm, Span<float> residual, const Kernels& kernels);
  void ReduceOverNodes(Communicator& comm, const Kernels& kernels);
  void ReduceDense(Communicator& comm, const Kernels& kernels);
  void RequireKnown(int rank) const;
  void Scatter(Range range, Span<float> residual, int owners, const Kernels& kernels);

  int id_;
  BucketSpec spec_;
  std::int64_t numel_ = 0;
  std::vector<std::vector<GradientSlice>> slices_;  // by segment
  const std::unique_ptr<const Sparsifier> sparsifier_;
  const Collective& collective_;
  const SparseAllreduce* const sparse_;  // null if the bucket is summed dense

  std::unique_ptr<NodeSum> node_;     // null unless nodes are summed first
  std::unique_ptr<DenseStep> dense_;  // null unless the bucket is summed dense
  Segments segments_;                 // of the bucket, or of this rank's shard
  std::int64_t gather_room_ = 0;      // the most entries that a shard of the node delivers

  Launch launch_;
  std::vector<GradView> inflow_;  // added to the residual: the gradients, or the velocity
  float inflow_scale_ = 1;
  std::vector<Feedback> feedback_;  // of one segment; reserved for the largest
  Verdict own_verdict_;  // on this rank's gradients; later on its node's, if nodes are summed
  SparseBlock selected_, reduced_;
  bool settled_ = false;    // selected entries may have returned to the residual
  SparseBlock masked_;      // velocities of what was selected, until the step has ended
  bool is_masked_ = false;  // they have been taken
  std::unique_ptr<DeviceReduce> device_reduce_;  // if not null, replaces the collective
  std::unique_ptr<DeviceStep> device_step_;      // if not null, runs whole steps
  bool is_enqueued_ = false;                     // device_step_ holds the entries of this step
  CollectiveScratch scratch_;
  std::vector<std::pair<Index, float>> rounded_;  // residuals before they took rounding errors
  std::int64_t overflows_ = 0;
  std::int64_t steps_ = 0;
  BucketStats stats_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_BUCKET_H_

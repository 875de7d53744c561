/// The exchange of selected entries, and its effects on residual, velocity and gradients.
///
/// With momentum correction, delivered entries are removed from residual and velocity both
/// (momentum factor masking: Lin et al., ICLR 2018).

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/gpu_collectives.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/shard_owner.h"
#include "csrc/exchange/step_record.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

class BlockExchange {
 public:
  /// Exchanges entries of `range` with the other nodes. `record` outlives this object; its
  /// collective takes blocks.
  BlockExchange(StepRecord* record, Range range, NodePlace place)
      : record_(*record), collective_(record->collective) {
    const bool owns = collective_.has_owners && place.nodes > 1;
    if (owns) owner_.emplace(*record, range, place.node, place.nodes);
  }

  /// Returns where nothing is to be selected: the shard that this rank owns, if it owns one.
  Range spared() const { return owner_ ? owner_->shard() : Range(); }

  /// The entries that were selected, and their sum.
  SparseBlock& selected() { return selected_; }
  SparseBlock& reduced() { return reduced_; }

  void Begin();

  /// Runs the collective, or `device` in its place if that is not null, between ranks that have
  /// selected from their residuals of the same entries. Puts back entries that were not delivered,
  /// and rounding errors.
  void Reduce(CollectiveContext* ctx, Span<float> residual, DeviceReduce* device = nullptr);

  /// Writes the sum into the gradients, and counts overflows. Errors of rounding to a narrow type
  /// are shared by the `owners` of each entry, in units of the sum; `residual` is that of `range`,
  /// which this rank owns.
  void Scatter(Range range, Span<float> residual, int owners, const Kernels& kernels);

  /// Mask the velocity, if there is one, of entries that left this rank's residual for good, or of
  /// all entries of the sum.
  void MaskSelected(const Kernels& kernels);
  void MaskReduced(const Kernels& kernels) { Mask(reduced_, kernels); }

  /// Put back the velocity that was masked, and all that left the residual.
  void PutBackVelocity(const Kernels& kernels);
  void PutBackSelected(const Kernels& kernels);

  /// Says that no residual has changed, although rounding errors were added to a copy.
  void ForgetRounding() { rounded_.clear(); }

 private:
  void Mask(const SparseBlock& leaving, const Kernels& kernels);

  StepRecord& record_;
  const Collective& collective_;
  std::optional<ShardOwner> owner_;
  SparseBlock selected_, reduced_;
  bool settled_ = false;    // selected entries may have returned to the residual
  SparseBlock leaving_;     // what was selected, and what the owner has taken
  SparseBlock masked_;      // velocities of what was selected, until the step has ended
  bool is_masked_ = false;  // they have been taken
  std::vector<std::pair<Index, float>> rounded_;  // residuals before they took rounding errors
};

}  // namespace hvd_sparse

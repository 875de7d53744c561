/// The residual and velocity of ops that are summed dense: in a step, and after it.
///
/// The residual is added to the gradient, since a dense sum holds nothing back. Once the step has
/// ended the residual is zero, except for what the gradient's number type rounds away. That
/// waits in the residual until MarkAllPending: gradients of that type would round it away in
/// each step, and their sums would have to be checked each time. With momentum the velocity is
/// added, too, and kept: nothing of it is delayed, so nothing is masked, and the rounding error is
/// added with it. Until the step has ended both stay unchanged, since it may be refused.
///
/// On a device all of this is enqueued on the stream that the step comes from.

#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// An op that is sent dense. Residual and velocity are as long as all its gradients together, or
/// empty.
struct DenseInFlight {
  std::size_t number = 0;
  Span<float> residual, velocity;
  Span<float> next;  ///< as long: scratch memory for the next velocity, until the step ends
  std::vector<float> decays = {};  ///< of the residual, by gradient
  float momentum = 0;              ///< of the velocity
  float gain = 1;                  ///< of the gradients, before anything is added
  float scale = 1;                 ///< of the gradients, relative to residual and velocity
  float loss_scale = 1;            ///< the part of 1 / scale that is the gradients' loss scale
};

class DensePath {
 public:
  /// `ranks`: those over which gradients are summed; `kernels`: those of the device on which
  /// everything lies.
  DensePath(std::size_t ops, int ranks, const Kernels& kernels)
      : ranks_(ranks),
        kernels_(kernels),
        pending_(ops, true),
        has_rounding_(ops, false),
        any_pending_(ops > 0),
        residuals_after_(ops) {}

  /// Marks all residuals as pending: each may hold something and is added in the next step. Called
  /// on all ranks alike.
  void MarkAllPending() { Restore(true); }

  /// Restores the state after a step: all residuals are pending, or none is, and what they hold are
  /// rounding errors. Called on all ranks alike.
  void Restore(bool pending);

  /// True if the residual of some rank may be pending; equal on all ranks.
  bool AnyPending() const;

  /// Begins a step of all ops, or only of some, which comes from `stream`.
  void Begin(StreamHandle stream, bool of_all);

  /// Adds residual and velocity to a gradient, as Kernels::Join does, if the residual is pending or
  /// there is a velocity; else decays the rounding error in the residual. Callable from any thread.
  void Join(const DenseInFlight& op, const std::vector<GradView>& gradients);

  /// Refuses the step, which no rank applies: residuals and velocities stay. Residuals still decay,
  /// like those of ops that are exchanged. Unless the dense sums are finite, entries of the
  /// residuals that were added to them are dropped if they alone could make a sum too large.
  void Refuse(bool sums_are_finite);

  /// Ends the step for one op, before the others: sets residual and velocity as Settle does, or
  /// leaves them as Refuse does for its sum, on all ranks alike.
  void SettleOp(std::size_t op, bool refused);

  /// Ends the step. Unless it was refused, sets the residuals that were added to their rounding
  /// errors, and the velocities to what Kernels::Join found. Returns true unless it was refused.
  bool Settle();

 private:
  struct Joined {
    DenseInFlight op;
    std::vector<std::int64_t> numels;  // of its gradients
    float largest = 0;                 // that all residuals may hold, if the sum is to be finite
  };

  void Decay(const Joined& one, StreamHandle stream) const;
  void Keep(const Joined& one, bool sum_is_finite) const;
  void Set(const Joined& one);

  const int ranks_;
  const Kernels& kernels_;
  mutable std::mutex mutex_;
  StreamHandle stream_ = 0;
  std::vector<bool> pending_;       // by op: this rank's residual is pending
  std::vector<bool> has_rounding_;  // by op: it may hold a rounding error, which is not added
  bool any_pending_;
  bool of_all_ = true;       // this step
  bool refused_ = false;     // this step
  bool op_refused_ = false;  // one of its ops
  std::vector<Joined> joined_;

  // By op, one per gradient:
  std::vector<std::vector<std::unique_ptr<ResidualAfterJoin>>> residuals_after_;
};

}  // namespace hvd_sparse

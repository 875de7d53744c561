/// The engine of steps: takes gradients in any order, exchanges them, and commits the step.
///
///     Begin(memory of the step)      once a step
///     Launch(op, gradients)          for each op, once a step; does not wait for other ranks
///     Summed(sums)                   for each sum of gradients that the host forms
///     Wait()                         once all ops were handed over: the results have arrived
///     Commit()                       commits the step, on all ranks or on none
///
/// A caller that applies some ops before others have arrived waits for them, by WaitFor, and
/// commits them alone, by CommitPart.
///
/// An op is a group of gradients that are handed over together: those of one layer or several. A
/// bucket is one op or several. Buckets start in one order, the same on every rank, whatever order
/// their ops come in: each waits for those before it. Nothing is applied before all ranks commit
/// the step: the model of a rank that applied some buckets of a step that is then refused would
/// differ from that of the others.
///
/// The gradients of an op may also be sent dense: then Launch returns them at once, and the caller
/// has them summed and reports the sums. Their residual is added to them, and is cleared once the
/// step is committed. With momentum correction their velocity is added, too, and kept. A step in
/// which a sum is not finite is refused.
///
/// Gradients may lie on a device: then a step and all its ops come from one stream, for which the
/// results are written when Wait has returned. In a step that is measured, the thread that starts a
/// bucket waits until the device has computed its gradients; in other steps no thread waits.
///
/// A framework that runs steps itself (PyTorch) calls this. For a graph's executor (TensorFlow),
/// which cannot wait in an op, a StepDriver does.

#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/types.h"
#include "csrc/exchange/dense_path.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/op_states.h"
#include "csrc/exchange/step_layout.h"
#include "csrc/exchange/step_memory.h"
#include "csrc/exchange/step_sample.h"
#include "csrc/exchange/step_times.h"

namespace hvd_sparse {

class StepEngine {
 public:
  using Done = OpStates::Done;

  /// Called with the engine's mutex held: when a bucket was started, when no bucket is started in
  /// this step any more, and when the step has `failed`.
  using Progress = std::function<void(bool failed)>;

  /// `buckets` have all ops, and are in the order in which they start. The exchange must outlive
  /// the engine. If it has buckets of other engines, none of them is in flight during a step.
  StepEngine(Exchange* exchange, std::vector<OpGradients> ops, std::vector<DrivenBucket> buckets,
             StepRules rules = {}, Progress progress = nullptr);

  /// Replaces the buckets from the next step on; called between two steps, on all ranks alike.
  void Replace(std::vector<DrivenBucket> buckets);

  /// Starts buckets in `order` from the next step on; called between two steps, on all ranks alike.
  /// Before that, and after Replace, they start in the order in which they were given.
  void Reorder(const std::vector<int>& order);

  /// Continues where another engine was after `steps` steps; `pending` is what AnyPending returned
  /// there. Called between two steps, on all ranks alike.
  void ContinueAfter(std::int64_t steps, bool pending = true);

  /// True if the residual of an op that is sent dense may be added to its next gradient, on some
  /// rank: equal on all ranks. Else such a residual holds what the gradient's number type has
  /// rounded away, which waits until the buckets are replaced. Between two steps.
  bool AnyPending() const { return dense_path_.AnyPending(); }

  /// Sets whether steps are timed from the next one on; called between two steps.
  void TimeSteps(bool wanted);

  /// Returns how many elements of scratch memory the next step needs.
  std::int64_t Room() const;

  /// Begins a step on this memory, which must be valid until Commit or Abandon: of all ops, or of
  /// the buckets that these ops form, on all ranks alike. Returns true if dense sums must be
  /// checked for NaN and Inf, on all ranks alike: a sparse bucket, a residual or a velocity takes
  /// part in the step. Else its ops need not be handed over. Throws the error that ended the
  /// exchange.
  bool Begin(const StepMemory& memory, const std::optional<std::set<int>>& ops = std::nullopt);

  /// Hands over the gradients of an op. Starts its bucket, and others that waited for it, on this
  /// thread. `decays`: the factor of the residual of each gradient; empty: that of the step's
  /// memory. `origin` is that of the step.
  ///
  /// Returns true if the op is sent dense: the gradients are the caller's again. Else the memory
  /// belongs to the exchange until Commit or Abandon, and TellAll calls `done`; without `done`,
  /// throws the error that fails the step. Throws the error that ended the exchange; handing over
  /// the same op twice in a step is one. If it throws, `done` is not called.
  bool Launch(int op, const std::vector<GradView>& gradients, const std::vector<float>& decays = {},
              Origin origin = {}, Done done = nullptr);

  /// Takes sums over the ranks that the host has formed, in CPU memory, of gradients that are sent
  /// dense. Checks that they are finite, if Begin returned true.
  void Summed(const std::vector<GradView>& sums);

  /// Like Summed, for sums that the caller has checked where they lie. `gradient` names them in the
  /// error.
  void SummedAs(bool finite, std::string_view gradient = {});

  /// True if the step has ops that are exchanged, and starts no bucket any more: all were started,
  /// or it has failed.
  bool AllStarted() const;

  /// Returns the error that fails the step, or null.
  std::exception_ptr Failure() const;

  /// Waits at most `seconds`; returns true if the results of all buckets that were started have
  /// arrived. Throws the error that ended the exchange, once that no longer uses the memory.
  bool Wait(double seconds);

  /// Like Wait, for the buckets of some ops alone, which were all started.
  bool WaitFor(const std::vector<int>& ops, double seconds);

  /// Returns why Commit will refuse the step, equal on all ranks; empty if it will not. Called once
  /// all ops were handed over and have arrived.
  std::string Problem() const;

  /// Commits the step, all of whose ops were handed over and have arrived. If a gradient or a sum
  /// was not finite, or `refuse` is not empty (on all ranks alike), throws NonFinite, on every rank
  /// alike, and nothing was applied; or, if the rules say so, marks the gradients and returns
  /// false. Returns true if the step was applied.
  bool Commit(std::string_view refuse = {});

  /// Commits what belongs to some ops, all or nothing: their buckets, which have arrived, or, if
  /// they are sent dense, the ops alone, whose sums were reported since the part before; without
  /// ops, those sums alone. Commit then commits the rest of the step. All ops were handed over
  /// before. Throws NonFinite as Commit does; then nothing of this part was applied.
  void CommitPart(const std::vector<int>& ops);

  /// Calls each `done` of the last step, which has ended, with its error or null.
  void TellAll(const std::exception_ptr& error);

  /// Returns when each op of this step was handed over, in seconds from the first; NaN: it was not.
  std::vector<double> Came() const;

  /// Returns the observations of a step. Called once, after Commit.
  StepEnd EndTimes();

  /// Returns the statistics of each bucket that is exchanged in this step, or was in the last one,
  /// in the order in which the buckets were given.
  std::vector<BucketStats> Stats() const;

  /// Returns the norms of this rank's residual that were noted, each after the number of steps
  /// before it: the powers of two from 64 on after which a bucket was sparse.
  std::vector<std::pair<std::int64_t, double>> ResidualNorms() const;

  /// Returns the samples of all buckets that were exchanged in the committed step, if it was
  /// measured; until the next Begin, while its memory is valid.
  const std::vector<StepSample>& Samples() { return sampler_.Complete(); }

  /// In the middle of a step: ends the exchange on all ranks for `reason`.
  void Cancel(std::string_view reason) noexcept;

  /// Ends the exchange on all ranks, also between steps.
  void Fail(std::string_view reason) noexcept;

  /// Gives up a step whose exchange has ended, unless it has ended, too: returns once the memory is
  /// the caller's again.
  void Abandon() noexcept;

  /// Ends the exchange on all ranks with the error that is being caught, unless that is what ended
  /// it or is NonFinite; returns it. `where` names the place in an out-of-memory error.
  template <typename... Parts>
  Error EndByCaught(const Parts&... where) const {
    return EndBy(CurrentError(exchange_->Rank(), where...));
  }

  const StepRules& rules() const { return rules_; }

  /// The layout of this step; it changes between two steps.
  const StepLayout& layout() const { return layout_; }

  /// The number of steps so far, refused ones included.
  std::int64_t steps() const;

 private:
  void Drain() noexcept;
  bool HasAllOf(std::size_t bucket) const;
  bool Complete() const;
  bool TakesPart(std::size_t bucket) const;
  void Start(std::size_t bucket);
  void Refuse(bool sums_are_finite);
  void FailWith(std::exception_ptr failure) noexcept;
  void NoteResidual(std::int64_t step);
  void EndStep(bool counts);
  std::size_t Checked(int op) const;
  std::set<int> BucketsOf(const std::vector<int>& ops) const;
  Error EndBy(Error error) const;

  Exchange* const exchange_;
  const StepRules rules_;
  const Kernels& kernels_;  // threads call Follow first, if only to be on their device
  const Progress progress_;

  mutable std::mutex mutex_;
  StepLayout layout_;
  OpStates op_states_;
  StepMemory memory_;
  bool begun_ = false;
  bool check_finite_ = false;  // what Begin has returned
  std::string sums_problem_;   // why the reported sums cannot be applied; empty: all are finite
  std::vector<std::size_t> order_;  // the buckets of this step, as they start
  std::size_t next_ = 0;            // place in the order of the next bucket to start
  std::size_t watched_ = 0;         // and of the next one to wait for
  bool draining_ = false;           // a thread starts buckets
  std::exception_ptr failure_;      // the first
  std::int64_t steps_ = 0;
  std::vector<std::pair<std::int64_t, double>> residual_norms_;

  StepTimer timer_;
  DensePath dense_path_;
  StepSampler sampler_;
};

}  // namespace hvd_sparse

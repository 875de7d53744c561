/// A driver of steps whose gradients are handed over by many threads, in any order: by the ops of a
/// TensorFlow graph, each with the gradients of one layer or several.
///
///     Begin(memory of the step)        once a step, before its ops
///     Launch(op, gradients, done)      for each op, once a step; does not wait for other ranks
///     done(error)                      for all ops that are exchanged together, once the step
///                                      was committed or has failed
///     Summed(sums)                     for each sum that Horovod forms
///     End(done)                        when all sums are there; then the next step may begin
///
/// A bucket is one op or several. Buckets start in one order, the same on every rank, whatever
/// order their ops come in: each waits for those before it. No result is handed out
/// before all ranks commit the step: the model of a rank that applied some buckets of a step that
/// is then refused would differ from that of the others.
///
/// The gradients of an op may also be sent dense: then Horovod sums them, and Launch returns them
/// at once. Their residual is added to them, and is cleared once the step has ended. With momentum
/// correction their velocity is added, too, and kept. Committing the step then also requires that
/// these sums have arrived and are finite. Once all ops are there, the deadline of all waits
/// (HVD_SPARSE_TIMEOUT) holds for the sums: when it passes, the exchange ends on all ranks, with a
/// warning, since an op that waits for a sum elsewhere may not get the error.
///
/// Gradients may lie on a device: then a step and all its ops come from one stream, for which
/// the results are written when `done` is called. In a step that is measured, the thread that
/// starts a bucket waits until the device has computed its gradients; in other steps no thread
/// waits.
///
/// This is the interface for a graph's executor (TensorFlow). A framework that runs steps itself
/// (PyTorch) calls the Exchange.

#ifndef HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_
#define HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/dense_path.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/horovod_sums.h"
#include "csrc/exchange/op_states.h"
#include "csrc/exchange/origin.h"
#include "csrc/exchange/step_layout.h"
#include "csrc/exchange/step_memory.h"
#include "csrc/exchange/step_rules.h"
#include "csrc/exchange/step_sample.h"
#include "csrc/exchange/step_times.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

class StepDriver {
 public:
  using Done = OpStates::Done;

  /// Hooks, called on the driver's thread. Their errors end the exchange. `exchanged` runs before
  /// the commit, so its error fails the step; the others run after it, so theirs fail the next step
  /// on this rank, or are logged if there is none. Other ranks, which may be behind, may lose this
  /// step.
  struct Hooks {
    std::function<void()> exchanged;  ///< all buckets were exchanged; no `done` was called
    /// Gets the samples of all buckets that were exchanged in a committed step that was measured.
    /// Called before any `done`, on all ranks alike.
    std::function<void(const std::vector<StepSample>&)> measured;
    std::function<void(const StepEnd&)> step_ended;  ///< may call Replace and the like
  };

  /// `buckets` have all ops, and are in the order in which they start; the exchange has no
  /// others, and must outlive the driver.
  StepDriver(Exchange* exchange, std::vector<OpGradients> ops, std::vector<DrivenBucket> buckets,
             Hooks hooks = {}, StepRules rules = {});

  /// Ends a step in flight, on all ranks, and waits until every `done` was called.
  ~StepDriver();

  /// Replaces the buckets from the next step on; called between two steps, on all ranks alike.
  void Replace(std::vector<DrivenBucket> buckets);

  /// Starts buckets in `order` from the next step on; called between two steps, on all ranks alike.
  /// Before that, and after Replace, they start in the order in which they were given.
  void Reorder(const std::vector<int>& order);

  /// Continues where another driver was after `steps` steps; called between two steps, on all ranks
  /// alike.
  void ContinueAfter(std::int64_t steps);

  /// Sets whether steps are timed from the next one on; called between two steps.
  void TimeSteps(bool wanted);

  /// Returns how many elements of scratch memory the next step needs.
  std::int64_t Room() const;

  /// Begins a step on this memory, which must be valid until End, or until the last `done` was
  /// called. Returns true if Horovod's sums are checked for NaN and Inf, on all ranks alike. Throws
  /// the error that ended the exchange.
  bool Begin(const StepMemory& memory);

  /// Hands over the gradients of an op. Starts its bucket, and others that waited for it, on this
  /// thread. `origin` is that of the step.
  ///
  /// Returns true if the op is sent dense: the gradients are the caller's again. Else `done` is
  /// called exactly once, on a thread of the driver, with the error or nullptr, and until then the
  /// memory belongs to the exchange. If this throws, `done` is not called. Handing over the same op
  /// twice in a step ends the exchange on all ranks.
  bool Launch(int op, const std::vector<GradView>& gradients, Done done, Origin origin = {});

  /// Takes sums over the ranks that Horovod has formed: of one op that was sent dense and has units
  /// of selection, or, if the rules have `others`, of all gradients that are always summed dense.
  /// Checks that they are finite, unless all ops are sent dense and neither residual nor velocity
  /// was added.
  void Summed(const std::vector<GradView>& sums) { sums_.Add(sums); }

  /// Like Summed, for sums that the caller has checked where they lie.
  void SummedAs(bool finite) { sums_.AddChecked(finite); }

  /// Ends the step, whose ops have all been summed, by the exchange or by Horovod. `done` is
  /// called exactly once: with NonFinite if all ops were sent dense and a sum is not finite.
  void End(Done done);

  /// In the middle of a step: ends the exchange on all ranks, and passes `reason` to every `done`.
  void Cancel(std::string_view reason) noexcept;

  /// Ends the exchange on all ranks, also between steps: for an op that will never be handed
  /// over.
  void Fail(std::string_view reason) noexcept;

  /// Ends the exchange on all ranks with the error that is being caught, unless that is what ended
  /// it or is NonFinite; returns it. `where` names the place in an out-of-memory error.
  template <typename... Parts>
  Error EndByCaught(const Parts&... where) const {
    return EndBy(CurrentError(exchange_->Rank(), where...));
  }

  const StepRules& rules() const { return rules_; }

  /// True on the driver's own thread, as in its hooks: that thread cannot destroy the driver.
  bool OnItsThread() const { return finisher_.IsCurrent(); }

  /// The number of steps so far, refused ones included.
  std::int64_t steps() const;

 private:
  // step_driver.cc: takes ops and starts buckets.
  void RequireOpen();
  void Drain() noexcept;
  bool HasAllOf(std::size_t bucket) const;
  void Start(std::size_t bucket);

  // step_driver_end.cc: runs on the driver's thread, except FinishAfter, and End without
  // step_ended.
  void WatchStarted();
  void Watch(int bucket, StreamHandle stream);
  void FinishAfter(std::exception_ptr failure) noexcept;
  void Finish();
  void WaitForSums();
  std::exception_ptr Commit();
  template <typename Work>
  void Afterwards(const Work& work) noexcept;
  std::exception_ptr Refuse(const Error& error);
  Done TakeEnding();
  void CallEndDone(const Done& done);
  void EndStep();
  Error EndBy(Error error) const;

  Exchange* const exchange_;
  const Hooks hooks_;
  const StepRules rules_;
  const Kernels& kernels_;  // threads call Follow first, if only to be on their device

  mutable std::mutex mutex_;
  StepLayout layout_;
  OpStates op_states_;
  StepMemory memory_;
  bool begun_ = false;
  std::size_t next_ = 0;     // place in the order of the next bucket to start
  std::size_t watched_ = 0;  // and of the next one to wait for
  bool draining_ = false;    // a thread starts buckets
  std::exception_ptr failure_;
  std::optional<Done> ending_;  // called when the step has ended
  std::int64_t steps_ = 0;

  StepTimer timer_;
  DensePath dense_path_;
  HorovodSums sums_;
  StepSampler sampler_;

  /// An error after a committed step, until the next step throws it; logged if there is none.
  struct PendingError {
    std::optional<Error> error;
    ~PendingError();
  } pending_error_;

  Worker::Task to_watch_, to_wait_for_sums_, to_finish_, to_end_;
  Worker finisher_;  // last: the others must exist while it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

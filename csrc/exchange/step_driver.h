/// A driver of steps whose gradients are handed over by many threads: by the ops of a TensorFlow
/// graph. It runs a StepEngine on a thread of its own, which waits and commits.
///
///     Begin(memory of the step)        once a step, before its ops
///     Launch(op, gradients, done)      for each op, once a step; does not wait for other ranks
///     done(error)                      for all ops that are exchanged together, once the step
///                                      was committed or has failed
///     Summed(sums)                     for each sum that the host forms
///     End(done)                        when all sums are there; then the next step may begin
///
/// The host sums the gradients of ops that are sent dense. Committing the step then also requires
/// that these sums have arrived and are finite. Once all ops are there, the deadline of all waits
/// (HVD_SPARSE_TIMEOUT_SECONDS) holds for the sums: when it passes, the exchange ends on all ranks,
/// with a warning, since an op that waits for a sum elsewhere may not get the error.

#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/host_sums.h"
#include "csrc/exchange/step_engine.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

class StepDriver {
 public:
  using Done = StepEngine::Done;

  /// Hooks, called on the driver's thread. Their errors end the exchange. `exchanged` runs before
  /// the commit, so its error fails the step; the others run after it, so theirs fail the next step
  /// on this rank, or are logged if there is none. Other ranks, which may be behind, may lose this
  /// step.
  struct Hooks {
    /// All buckets were exchanged; gets their statistics. No `done` was called.
    std::function<void(const std::vector<BucketStats>&)> exchanged;
    /// Gets the samples of all buckets that were exchanged in a committed step that was measured.
    /// Called before any `done`, on all ranks alike.
    std::function<void(const std::vector<StepSample>&)> measured;
    std::function<void(const StepEnd&)> step_ended;  ///< may call StepEngine::Replace and the like
  };

  /// See StepEngine.
  StepDriver(Exchange* exchange, std::vector<OpGradients> ops, std::vector<DrivenBucket> buckets,
             Hooks hooks = {}, StepRules rules = {});

  /// Ends a step in flight, on all ranks, and waits until every `done` was called.
  ~StepDriver();

  /// Returns the engine, for all calls but those of a step's course.
  StepEngine& engine() { return engine_; }

  /// Like StepEngine::Begin; the memory must be valid until End, or until the last `done` was
  /// called.
  bool Begin(const StepMemory& memory);

  /// Like StepEngine::Launch, but unless the op is sent dense, `done` is called exactly once, on a
  /// thread of the driver, with the error or nullptr, and until then the memory belongs to the
  /// exchange. If this throws, `done` is not called.
  bool Launch(int op, const std::vector<GradView>& gradients, Done done, Origin origin = {});

  /// Takes sums over the ranks that the host has formed: of one op that was sent dense and has
  /// units of selection, or, if the rules have `others`, of all gradients that are always summed
  /// dense. See StepEngine::Summed and SummedAs.
  void Summed(const std::vector<GradView>& sums);
  void SummedAs(bool finite);

  /// Ends the step, whose ops have all been summed, by the exchange or by the host. `done` is
  /// called exactly once: with NonFinite if all ops were sent dense and a sum is not finite.
  void End(Done done);

  /// True on the driver's own thread, as in its hooks: that thread cannot destroy the driver.
  bool OnItsThread() const { return finisher_.IsCurrent(); }

 private:
  void RequireOpen();

  // These run on the driver's thread, except CallEndDone without step_ended.
  void Advance();
  std::exception_ptr Commit();
  void AwaitSums();
  template <typename Work>
  void Afterwards(const Work& work) noexcept;
  Done TakeEnding();
  void CallEndDone(const Done& done);

  Exchange* const exchange_;
  const Hooks hooks_;
  HostSums sums_;
  std::mutex mutex_;
  std::optional<Done> ending_;  // called when the step has ended

  /// An error after a committed step, until the next step throws it; logged if there is none.
  struct PendingError {
    std::optional<Error> error;
    ~PendingError();
  } pending_error_;

  StepEngine engine_;
  Worker::Task to_advance_, to_await_sums_, to_end_;
  Worker finisher_;  // last: the others must exist while it runs
};

}  // namespace hvd_sparse

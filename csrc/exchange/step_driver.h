/// Steps whose gradients are handed over by many threads, in any order.
///
///     Begin(memory of the step)        once a step, before its pieces
///     Launch(piece, gradients, done)   for each piece, once a step; does not wait for other ranks
///     done(error)                      for all pieces that are exchanged together, once the step
///                                      was committed or has failed
///     Summed(sums)                     for each sum that somebody else forms
///     End(done)                        when everything is there; then the next step may begin
///
/// A bucket is one piece or several. Buckets start in one order, the same on every rank, whatever
/// order their pieces come in: each waits for those before it. No result is handed out
/// before the step counts on all ranks: whoever applied some buckets of a step that is then refused
/// would have lost its replica.
///
/// A piece may also pass: then it is somebody else's to sum, dense, and leaves at once. What its
/// residual holds goes with it, and is gone once the step has ended. So does its velocity, where
/// momentum is corrected, and stays. The step counts when those sums are there and finite, too.
/// From when all pieces are there, the deadline of all waits (HVD_SPARSE_TIMEOUT) holds for them:
/// the exchange then ends on all ranks, and a warning says so, since who waits for a sum elsewhere
/// may not be told.
///
/// Gradients may lie on a device: then a step and all its pieces come from one stream of it, which
/// finds the results written when `done` is called. In a step that is measured, whoever starts a
/// bucket waits until the device has come to its gradients; in others nobody does.
///
/// This is the face that a graph's executor needs. Who runs steps by itself (PyTorch) calls the
/// Exchange.

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
#include "csrc/exchange/dense_sums.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/origin.h"
#include "csrc/exchange/passage.h"
#include "csrc/exchange/step_layout.h"
#include "csrc/exchange/step_memory.h"
#include "csrc/exchange/step_pieces.h"
#include "csrc/exchange/step_rules.h"
#include "csrc/exchange/step_sample.h"
#include "csrc/exchange/step_times.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

class StepDriver {
 public:
  using Done = StepPieces::Done;

  /// Called on the driver's thread. What they throw ends the exchange: the first one before the
  /// step counts, the others when it does, so that it is the next one that fails on this rank, or
  /// the log tells it; others, which may be behind, may lose this one.
  struct Hooks {
    std::function<void()> exchanged;  ///< all buckets were; nobody knows yet
    /// Of a step that counts and was to be measured, all buckets that did not pass. Called before
    /// anybody is told, on all ranks alike.
    std::function<void(const std::vector<StepSample>&)> measured;
    std::function<void(const StepEnd&)> step_ended;  ///< may call Replace and the like
  };

  /// `buckets` in the order in which they start, of all pieces; the exchange has no others, and
  /// outlives this.
  StepDriver(Exchange* exchange, std::vector<Piece> pieces, std::vector<DrivenBucket> buckets,
             Hooks hooks = {}, StepRules rules = {});

  /// Ends what is in flight, on all ranks, and waits until every `done` was called.
  ~StepDriver();

  /// Other buckets from the next step on, between two steps; on all ranks alike.
  void Replace(std::vector<DrivenBucket> buckets);

  /// Starts buckets in another order from the next step on, between two steps; on all ranks alike.
  /// Until then, and after Replace, they start in their own.
  void Reorder(const std::vector<int>& order);

  /// Goes on, between two steps, where another driver was after so many steps; on all ranks alike.
  void GoOnAfter(std::int64_t steps);

  /// Whether steps are timed from the next one on; between two steps.
  void TimeSteps(bool wanted);

  /// Elements of scratch memory that the next step needs.
  std::int64_t Room() const;

  /// The memory of this step; valid until End, or until no `done` is to be called any more. Returns
  /// whether it matters that the sums that others form are finite, on all ranks alike. Throws what
  /// has ended the exchange.
  bool Begin(const StepMemory& memory);

  /// Hands over a piece. Starts its bucket, and others that waited for it, on this thread. `origin`
  /// is that of the step.
  ///
  /// Returns true if the piece passes: the gradients are the caller's again. Else `done` is called
  /// exactly once, on a thread of the driver, with what went wrong or nullptr, and until then the
  /// memory belongs to the exchange. Where this throws, `done` is not called. A piece that is
  /// handed over twice in a step ends the exchange on all ranks.
  bool Launch(int piece, const std::vector<GradView>& gradients, Done done, Origin origin = {});

  /// Sums over the ranks that somebody else has formed: of one piece that passed and has units of
  /// selection; or of all that always travels dense, if there are `others`. Reads them where a step
  /// is to be refused if they are not finite: unless all pieces pass, and nothing went with them.
  void Summed(const std::vector<GradView>& sums) { sums_.Add(sums); }

  /// The same of sums at which somebody has looked where they lie.
  void SummedAs(bool finite) { sums_.AddSeen(finite); }

  /// Ends the step, whose pieces have all been summed, by the exchange or by others. `done` is
  /// called exactly once: with NonFinite where all passed, and a sum is not finite.
  void End(Done done);

  /// Amid a step: ends the exchange on all ranks, and whoever waits is told `reason`.
  void Cancel(std::string_view reason) noexcept;

  /// Ends the exchange on all ranks, also between steps: for a piece that will not come.
  void Fail(std::string_view reason) noexcept;

  /// Ends the exchange on all ranks with what is being caught, unless that is what has ended it, or
  /// says that a step is not finite; returns it. `where` names the place, for a lack of memory.
  template <typename... Parts>
  Error EndByCaught(const Parts&... where) const {
    return EndBy(Caught(exchange_->Rank(), where...));
  }

  const StepRules& rules() const { return rules_; }

  /// Whether the caller is the driver's own thread, as in its hooks: it cannot end the driver.
  bool OnItsThread() const { return finisher_.IsCurrent(); }

  /// Steps that were exchanged so far, refused ones among them.
  std::int64_t steps() const;

 private:
  // step_driver.cc: pieces come, and buckets start.
  void RequireOpen();
  void Drain() noexcept;
  bool HasAllOf(std::size_t bucket) const;
  void Start(std::size_t bucket);

  // step_driver_end.cc: on the driver's thread, but for FinishAfter, and End where nobody is told.
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
  void TellEnd(const Done& done);
  void EndStep();
  Error EndBy(Error error) const;

  Exchange* const exchange_;
  const Hooks hooks_;
  const StepRules rules_;
  const Kernels& kernels_;  // whoever calls them follows them first, if only to be on their device

  mutable std::mutex mutex_;
  StepLayout layout_;
  StepPieces pieces_;
  StepMemory memory_;
  bool begun_ = false;
  std::size_t next_ = 0;     // place in the order of the bucket to start
  std::size_t watched_ = 0;  // and of the one to wait for
  bool draining_ = false;    // a thread starts buckets
  std::exception_ptr failure_;
  std::optional<Done> ending_;  // whoever is to be told that the step has ended
  std::int64_t steps_ = 0;

  StepTimer timer_;
  Passage passage_;
  DenseSums sums_;
  StepSampler sampler_;

  /// What came after a step that counts, if no step has followed that could tell it.
  struct Untold {
    std::optional<Error> error;
    ~Untold();
  } untold_;

  Worker::Task to_watch_, to_wait_for_sums_, to_finish_, to_end_;
  Worker finisher_;  // last: the others must exist while it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

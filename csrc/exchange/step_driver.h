/// Steps whose gradients are handed over by many threads, in any order.
///
///     Begin(residual, states)          once a step, before its pieces
///     Launch(piece, gradients, done)   for each piece, once a step; does not wait for other ranks
///     done(error)                      for all pieces that are exchanged together, once the step
///                                      was committed or has failed
///     End(done)                        when everything is there; then the next step may begin
///
/// A bucket is one piece or several. Buckets start in one order, the same on every rank, whatever
/// order their pieces come in: each waits for those before it. No result is handed out
/// before the step counts on all ranks: whoever applied some buckets of a step that is then refused
/// would have lost its replica.
///
/// A piece may also pass: then it is somebody else's to sum, dense, and leaves at once. What its
/// residual holds goes with it, and is gone once the step has ended.
///
/// This is the face that a graph's executor needs. Who runs steps by itself (PyTorch) calls the
/// Exchange.

#ifndef HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_
#define HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

/// Gradients that are handed over together. The pieces' parts of residual and states follow each
/// other, in the order of the pieces.
struct Piece {
  std::int64_t numel = 0;     ///< of all its gradients, and of its part of the residual
  std::int64_t segments = 0;  ///< units of selection in it
};

/// Consecutive pieces that travel together, and what holds for them in every step.
struct DrivenBucket {
  static constexpr int kPasses = -1;

  int bucket = 0;  ///< from Exchange::AddBucket, or kPasses
  float scale = 1, output_scale = 1;

  /// From which step on, counted from 0 and ascending, which k of every segment. Not for a bucket
  /// that passes.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> ks;

  int pieces = 1;

  bool passes() const { return bucket == kPasses; }
};

/// When things happened in a step, in seconds; NaN where that is not known.
struct StepTimes {
  double step = 0;            ///< from the end of the step before to this one's
  double forward = 0;         ///< from the end of the step before to the first piece
  std::vector<double> ready;  ///< of each piece, counted from the first
};

/// What becomes of a step in which a gradient or a sum is not finite.
enum class NonFinite {
  kRefuse,  ///< every `done` is told
  kMark,    ///< no error: the gradients hold NaN instead, on every rank alike
};

class StepDriver {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  /// Called on the driver's thread. What they throw, of type Error, fails the step.
  struct Hooks {
    std::function<void()> exchanged;                   ///< all buckets were; nobody knows yet
    std::function<void(const StepTimes&)> step_ended;  ///< may call Replace
  };

  /// `buckets` in the order in which they start, of all pieces; the exchange has no others, and
  /// outlives this.
  StepDriver(Exchange* exchange, std::vector<Piece> pieces, std::vector<DrivenBucket> buckets,
             Hooks hooks = {}, NonFinite non_finite = NonFinite::kRefuse);

  /// Ends what is in flight, on all ranks, and waits until every `done` was called.
  ~StepDriver();

  /// Other buckets from the next step on, between two steps; on all ranks alike.
  void Replace(std::vector<DrivenBucket> buckets);

  /// Starts buckets in another order from the next step on, between two steps; on all ranks alike.
  /// Until then, and after Replace, they start in their own.
  void Reorder(const std::vector<int>& order);

  /// Goes on, between two steps, where another driver was after so many steps; on all ranks alike.
  /// Any residual may hold something.
  void GoOnAfter(std::int64_t steps);

  /// The memory of this step; valid until End, or until no `done` is to be called any more. The
  /// residual is multiplied by `decay` as gradients join it, or as it joins them.
  void Begin(Span<float> residual, Span<SelectionState> states, float decay = 1);

  /// Hands over a piece. Starts its bucket, and others that waited for it, on this thread.
  ///
  /// Returns true if the piece passes: the gradients are the caller's again. Else `done` is called
  /// exactly once, on a thread of the driver, with what went wrong or nullptr, and until then the
  /// memory belongs to the exchange. A piece that is handed over twice in a step ends the exchange
  /// on all ranks.
  bool Launch(int piece, const std::vector<GradView>& gradients, Done done);

  /// Ends the step, whose pieces have all been summed, by the exchange or by others.
  void End(Done done);

  /// Amid a step: ends the exchange on all ranks, and whoever waits is told `reason`.
  void Cancel(const std::string& reason);

  /// Ends the exchange on all ranks, also between steps: for a piece that will not come.
  void Fail(const std::string& reason);

  /// Steps that were exchanged so far, refused ones among them.
  std::int64_t steps() const;

 private:
  /// A piece, in a step.
  struct Place {
    std::size_t bucket = 0;
    std::int64_t offset = 0, first_segment = 0;  // in residual and states
    bool taken = false;                          // by the exchange
    bool owes = true;                            // its residual may hold something
    double arrived = 0;                          // 0: not yet
    std::vector<GradView> gradients;
    Done done;
  };

  /// A residual that has gone with a gradient: what it has to be once the step has ended.
  struct Joined {
    std::size_t piece;
    std::vector<std::pair<Index, float>> rest;
  };

  void Adopt(std::vector<DrivenBucket> buckets);
  bool InStep() const;
  bool HasAllOf(std::size_t bucket) const;
  hvd_sparse::Launch LaunchOf(std::size_t bucket) const;
  void Pass(std::size_t piece, const std::vector<GradView>& gradients, float scale);
  void Drain();
  void Watch(int bucket);
  void FinishAfter(std::exception_ptr failure);
  void Finish();
  void EndStep();
  StepTimes TakeTimes();

  Exchange* const exchange_;
  const std::vector<Piece> pieces_;
  const Hooks hooks_;
  const NonFinite non_finite_;

  mutable std::mutex mutex_;
  std::vector<DrivenBucket> buckets_;
  std::vector<std::size_t> first_piece_;  // of each bucket, and past the last one
  std::vector<std::size_t> order_;        // in which buckets start
  std::vector<Place> places_;
  std::vector<Joined> joined_;
  Span<float> residual_;
  Span<SelectionState> states_;
  float decay_ = 1;
  std::size_t next_ = 0;  // place in order_ of the bucket to start
  bool draining_ = false;
  std::exception_ptr failure_;
  std::int64_t steps_ = 0;
  double last_end_ = 0;  // 0: no step has ended

  Worker finisher_;  // last: the others must exist while it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

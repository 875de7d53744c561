/// Steps whose buckets are handed over by many threads, in any order.
///
///     Launch(place, ..., done)   for each bucket, once a step; does not wait for other ranks
///     done(error)                for all buckets together, once the step was committed or has
///     failed
///
/// Buckets start in their own order, the same on every rank, whatever order they come in: each
/// waits for those before it. No result is handed out before the step counts on all ranks: whoever
/// applied some buckets of a step that is then refused would have lost its replica.
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
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

/// A bucket of a StepDriver, and what holds for it in every step.
struct DrivenBucket {
  int bucket = 0;  ///< from Exchange::AddBucket
  float scale = 1, output_scale = 1;

  /// From which step on, counted from 0 and ascending, which k of every segment.
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> ks;
};

class StepDriver {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  /// `buckets` in the order in which they start; the exchange has no others, and outlives this.
  /// `after_step`, if there is one, is called once all buckets of a step were exchanged, on the
  /// driver's thread, before anybody is told.
  StepDriver(Exchange* exchange, std::vector<DrivenBucket> buckets,
             std::function<void()> after_step = nullptr);

  /// Ends what is in flight, on all ranks, and waits until every `done` was called.
  ~StepDriver();

  /// Hands over the bucket at `place`. Starts it, and others that waited for it, on this thread.
  ///
  /// `done` is called exactly once, on a thread of the driver, with what went wrong or nullptr.
  /// Until then the memory belongs to the exchange. A bucket that is handed over twice in a step
  /// ends the exchange on all ranks.
  void Launch(int place, std::vector<GradView> gradients, Span<float> residual,
              Span<SelectionState> states, Done done);

  /// Amid a step: ends the exchange on all ranks, and whoever waits is told `reason`.
  void Cancel(const std::string& reason);

  /// Ends the exchange on all ranks, also between steps: for a bucket that will not come.
  void Fail(const std::string& reason);

  /// Steps that were exchanged so far, refused ones among them.
  std::int64_t steps() const;

 private:
  struct Place {
    bool taken = false;                         // in this step
    std::optional<hvd_sparse::Launch> waiting;  // until its turn
    Done done;
  };

  bool InStep() const;
  std::vector<std::int64_t> KsOf(const DrivenBucket& bucket) const;
  void Drain();
  void Finish();

  Exchange* const exchange_;
  const std::vector<DrivenBucket> buckets_;
  const std::function<void()> after_step_;

  mutable std::mutex mutex_;
  std::vector<Place> places_;
  std::size_t next_ = 0;  // place to start
  bool draining_ = false;
  std::exception_ptr failure_;
  std::int64_t steps_ = 0;

  Worker finisher_;  // last: the others must exist while it runs
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_DRIVER_H_

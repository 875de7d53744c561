/// The sums of a step that somebody else forms, dense: whether all are there, and all are finite;
/// and the wait for them.

#ifndef HVD_SPARSE_EXCHANGE_DENSE_SUMS_H_
#define HVD_SPARSE_EXCHANGE_DENSE_SUMS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

class DenseSums {
 public:
  /// `check` is called now and then by who waits, and throws what ends the wait. The deadline is
  /// that of all waits (WaitLimits::FromEnvironment).
  explicit DenseSums(std::function<void()> check);

  /// A step in which so many pieces pass whose sums are told one by one; and `others`, once.
  /// `looks`: whether it matters that they are finite, on all ranks alike; else nobody reads them.
  void Begin(std::size_t passing, bool others, bool looks);

  /// One of these pieces has come. Returns whether it was the last one of the step.
  bool Pass();

  /// Sums that are there, from any thread.
  void Add(const std::vector<GradView>& sums);

  /// The same, when somebody else has looked.
  void AddSeen(bool finite);

  /// Waits until all came, or Interrupt or the next Begin did. After the deadline, counted from the
  /// last sum that came, warns and throws Timeout: whoever waits elsewhere for what is missing may
  /// never hear of an error.
  void Await();

  /// How many have yet to come.
  std::size_t missing() const;

  /// Ends the wait for this step's.
  void Interrupt();

  /// Whether none that was looked at holds NaN or Inf; sums over all ranks, so they all say the
  /// same.
  bool finite() const;

  /// Why no rank may apply the step; empty where all are finite.
  std::string Problem() const;

 private:
  /// Whether the wait for that step is over, within so many seconds.
  bool Wait(std::int64_t step, double seconds);

  const std::function<void()> check_;
  const WaitLimits limits_ = WaitLimits::FromEnvironment();

  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::int64_t step_ = 0;    // counts calls of Begin
  std::size_t passing_ = 0;  // pieces that have yet to come
  std::size_t missing_ = 0;  // sums likewise
  bool interrupted_ = false;
  bool looks_ = false;
  bool finite_ = true;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_DENSE_SUMS_H_

/// An exchange: the buckets of one optimizer, exchanged in one order over one communicator.
///
///     Start(bucket, launch)   in the backward pass, bucket by bucket; does not wait
///     Wait(bucket)            for each bucket, before the optimizer's step
///     Commit()                commits the step, on all ranks or on none
///
/// Only a StepEngine makes these calls; others connect exchanges, add buckets and measure. Each
/// bucket is started once per step, in the same order on every rank. The exchange's own thread
/// runs their collectives in that order.
///
/// Errors: if an argument is invalid, Start throws, and nothing has happened. Any later error ends
/// the exchange on every rank: all waits throw, the residuals hold what was not applied, and the
/// exchange stays ended. A gradient that is not finite only undoes its step (Commit).

#pragma once

#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/comm/communicator.h"
#include "csrc/comm/nodes.h"
#include "csrc/exchange/bucket.h"
#include "csrc/exchange/device_link.h"
#include "csrc/exchange/route_of.h"
#include "csrc/exchange/worker.h"

namespace hvd_sparse {

/// The thread that accumulates and selects. For gradients on a device it is always the engine's: it
/// waits for the device, while the caller has to go on giving the device work.
enum class SelectOn {
  kCaller,  ///< the one that calls Start
  kEngine,  ///< one of the exchange's own, beside the one that communicates
};

class Exchange {
 public:
  /// `checks`: true if the ranks compare what they are about to do (see intent.h) in every step,
  /// and not only when they exchange a bucket for the first time; equal on all ranks.
  Exchange(std::unique_ptr<Communicator> comm, SelectOn select_on, Nodes nodes = {},
           bool checks = false);

  /// In the middle of a step, whose memory must still exist: ends the exchange on all ranks, and
  /// stops using the memory.
  ~Exchange();

  int Rank() const { return comm_->Rank(); }
  int Size() const { return comm_->Size(); }
  const Nodes& nodes() const { return nodes_; }
  bool checks() const { return checks_; }

  /// Returns why messages cannot lie in GPU memory; empty if they can.
  std::string DeviceMemoryProblem() const { return comm_->DeviceMemoryProblem(); }

  /// Sets a text that must be equal on all ranks for buckets started from now on; part of the
  /// checks.
  void Note(std::string note);

  /// Adds a bucket and returns its number. All ranks use the same order.
  ///
  /// Throws InvalidArgument if the numbers do not fit together, or the ranks are not placed on
  /// nodes as the collective requires; Unavailable if there are no kernels for its device.
  int AddBucket(BucketSpec spec);

  /// Removes all buckets, between two steps; on every rank alike. Numbers of exchanged buckets are
  /// not reused, so that a rank which still exchanges an old bucket is detected; other numbers are,
  /// so that ranks agree even if some replaced their buckets once and others twice since the last
  /// step. An exchange that has ended keeps its buckets and throws: MPI may still read their
  /// memory.
  void ClearBuckets();

  void Start(int bucket, Launch launch);

  /// Waits at most `seconds`; returns true if the bucket has arrived. Throws the error that ended
  /// the exchange. Only one thread at a time may wait for a bucket.
  ///
  /// Gradients on a device may be written a little later; work enqueued on `stream` from now on
  /// begins after that.
  bool Wait(int bucket, double seconds, StreamHandle stream = 0);

  /// Returns the statistics of a bucket's last step.
  BucketStats Stats(int bucket) const;

  /// Commits some buckets of the step, all or none, once Wait has returned true for each; the
  /// others go on. Throws NonFinite as Commit does, for these buckets alone.
  void CommitBuckets(const std::vector<int>& buckets);

  /// Returns why no rank will apply the step, once Wait has returned true for every started bucket:
  /// a gradient or a sum that is not finite, or of which a sum is. Empty: there is no such reason.
  /// Equal on all ranks.
  std::string Problem() const;

  /// Commits the rest of the step, once Wait has returned true for every started bucket.
  ///
  /// Throws NonFinite, on every rank alike, if a gradient or a sum was not finite, or if `refuse`
  /// is not empty (also on all ranks alike): every residual is then what it was after Accumulate,
  /// but for entries whose sum is too large (Bucket::LargestKept), which would be refused again.
  void Commit(const std::string& refuse);

  /// Returns the seconds of each of `repetitions` swaps of `bytes` bytes with `peer`, which makes
  /// the same call for this rank: the cost of a round of an exchange on this network.
  ///
  /// Runs on the calling thread, while no bucket is in flight. An error ends the exchange, as it
  /// does in a bucket.
  std::vector<double> Swap(int peer, std::int64_t bytes, int repetitions);

  /// The number of ranks to which Spread sends: as many as a collective sends to at once.
  int SpreadPeers() const;

  /// Like Swap, but sends a message to each of the next SpreadPeers ranks and receives one from
  /// each of those before this rank, all at once. All ranks call it, with the same numbers.
  std::vector<double> Spread(std::int64_t bytes, int repetitions);

  /// Returns the numbers of all ranks, in rank order; each passes as many, and `what`, the name of
  /// what they do together. A wait for a rank names it, as in a bucket. Otherwise like Swap.
  std::vector<std::vector<double>> Gather(const std::vector<double>& numbers,
                                          const std::string& what);

  /// Returns true if a network connects the devices of all ranks, `device` on this one; makes it if
  /// it has not been tried yet. Collective, and otherwise like Swap.
  bool ConnectDevices(Device device);

  /// Says how blocks go from device to device, and why so, as DeviceLink::How.
  std::string BetweenDevices() const { return devices_.How(); }

  /// Like Swap, but from device to device, once they are connected (GpuCollectives::TimedSwaps).
  std::vector<double> SwapBetweenDevices(int peer, std::int64_t bytes, int repetitions);

  /// Return the seconds of the merge that follows such a swap on the device, and of copying blocks
  /// to the device and back (GpuCollectives::TimedMerges, TimedCopies). They run on this rank
  /// alone, while no bucket is in flight; an error does not end the exchange.
  std::vector<double> MergeOnDevice(std::int64_t entries, int repetitions);
  std::vector<double> CopyToDevice(std::int64_t entries, int repetitions);

  /// Throws if the exchange has ended.
  void Check();

  /// Like Check, but before closing: other ranks may have left already.
  void CheckAtEnd();

  /// If the exchange has ended, stops using the step's memory, as every wait does before it throws:
  /// selected entries are back in the residuals. For callers that no longer wait.
  void ReleaseMemory() noexcept;

  /// Ends the exchange on all ranks, unless it has ended. Does not fail.
  void Fail(std::string_view reason) noexcept;

  /// Like Fail, but because of `error`: all waits throw an error of that kind (KindOnPeers).
  void EndBy(const Error& error) noexcept;

  /// Notes that the user knows what ended the exchange, or is about to: nothing else blocks the
  /// thread that was told. For what happens without this call, see Lifeline::Acknowledge. No effect
  /// before the exchange ends.
  void Acknowledge();

 private:
  enum class State {
    kIdle,
    kStarted,  // a thread of the exchange has it, or will have it
    kArrived,
    kCommitted,  // by itself; other buckets of the step may be on their way
  };
  struct Slot {
    explicit Slot(Exchange* exchange)
        : select_task([exchange, this] { exchange->Select(this); }),
          collective_task([exchange, this] { exchange->RunCollective(this); }) {}

    std::unique_ptr<Bucket> bucket;
    const Kernels* kernels = nullptr;  // of the bucket's device
    State state = State::kIdle;
    bool selected = false;  // its entries of this step may have left the residual
    bool was_started = false;

    Worker::Task select_task, collective_task;

    // State of this step: its inputs, until they are selected from; its route, if devices can be
    // connected; and what this rank is about to do, if the ranks compare that.
    Launch launch;
    Route route = Route::kCalls;
    std::string intent;
    double wait_begin = 0, wait_end = 0;

    // For a device: the caller's stream; the mark before which gradients must not be read; and the
    // mark before which that stream must not use the memory, which is the caller's again.
    StreamHandle stream = 0;
    std::shared_ptr<const Mark> ready, written;
  };

  struct LeakedToMpi;

  /// The refusal of a step, or of a part of it: equal on all ranks.
  struct Refusal {
    std::string why;           // why no rank applies it; empty if all do
    float largest = INFINITY;  // the largest magnitude that the residuals keep of all its buckets

    /// Throws NonFinite if there is a reason; `what` is a step, or a part of one.
    void ThrowIfAny(const char* what) const {
      if (why.empty()) return;
      const std::string kept = std::isinf(largest) ? "keep all its finite entries"
                                                   : Concat("keep its entries up to ", largest);
      Throw(ErrorKind::kNonFinite, why, ": no rank applies this ", what, ", and the residuals ",
            kept);
    }
  };

  Slot& SlotOf(int bucket);
  bool AnyIs(State state) const;
  void Reach(State state, Slot* slot);
  /// Runs one phase of a bucket's step, unless the exchange has ended; `phase` names it in errors.
  /// Returns true if it was done.
  template <typename Work>
  bool Run(const Slot& slot, const char* phase, const Work& work);
  /// Like Run, but even if the exchange has ended.
  template <typename Work>
  bool Try(const Slot& slot, const char* phase, const Work& work);
  void Select(Slot* slot);
  void RunCollective(Slot* slot);
  class Measuring;
  template <typename Work>
  void Measure(const std::string& what, const Work& work);
  void End(const Error& error) noexcept { End(error, error.what()); }
  void End(const Error& error, const char* reason) noexcept;
  bool HasEnded() const;
  std::unique_lock<std::mutex> LockWhileOpen();
  template <typename Included>
  Refusal Settle(const Included& included, const std::string& refuse);
  void PutBackAll();
  void LeakToMpi();
  void CheckBy(void (Communicator::*check)());
  [[noreturn]] void ThrowEnded();

  std::unique_ptr<Communicator> comm_;
  const Nodes nodes_;
  const bool checks_;
  DeviceLink devices_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::unique_ptr<Slot>> slots_;
  int first_bucket_ = 0;    // the number of slots_[0]
  bool started_ = false;    // one of slots_ was started, in any step
  std::int64_t steps_ = 0;  // steps that have ended
  std::string note_;
  bool measuring_ = false;
  std::vector<Buffer> swapped_;
  std::optional<Error> ended_;
  bool put_back_ = false;
  std::unique_ptr<LeakedToMpi> leaked_to_mpi_;

  std::unique_ptr<Worker> exchanger_;
  std::unique_ptr<Worker> selector_;  // null: the caller selects
};

}  // namespace hvd_sparse

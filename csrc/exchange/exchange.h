/// An exchange: the buckets of one optimizer, exchanged in one order over one communicator.
///
///     handle = Start(bucket, launch)   in the backward pass, bucket by bucket; does not wait
///     Wait(handle)                     for each bucket, before the optimizer's step
///     Commit()                         then the step counts, on all ranks or on none
///
/// Each bucket is started once per step, in the same order on every rank. The exchange's own thread
/// takes them through the collective in that order, or gives a device all of a step, whose end Wait
/// waits for; see route_of.h.
///
/// Errors: what is wrong with an argument is thrown by Start, and nothing has happened. Anything
/// later ends the exchange on every rank: all waits throw, the residuals hold what was not applied,
/// and the exchange stays ended. A gradient that is not finite only undoes its step (Commit).

#ifndef HVD_SPARSE_EXCHANGE_EXCHANGE_H_
#define HVD_SPARSE_EXCHANGE_EXCHANGE_H_

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

/// Which thread accumulates and selects. For gradients on a device it is always the engine's: it
/// waits for the device, and the caller has yet to give the device its work.
enum class SelectOn {
  kCaller,  ///< the one that calls Start
  kEngine,  ///< one of the exchange's own, beside the one that communicates
};

class Exchange {
 public:
  /// `checks`: whether the ranks compare what they are about to do (see intent.h) in every step,
  /// and not only when they exchange a bucket for the first time; the same on all ranks.
  Exchange(std::unique_ptr<Communicator> comm, SelectOn select_on, Nodes nodes = {},
           bool checks = false);

  /// Amid a step, whose memory has to be there: ends the exchange on all ranks, and leaves the
  /// memory alone.
  ~Exchange();

  int Rank() const { return comm_->Rank(); }
  int Size() const { return comm_->Size(); }
  const Nodes& nodes() const { return nodes_; }
  bool checks() const { return checks_; }

  /// Why its messages cannot lie in memory of a GPU; empty if they can.
  std::string DeviceMemoryProblem() const { return comm_->DeviceMemoryProblem(); }

  /// What else has to be equal on all ranks in buckets that are started from now on; for checks.
  void Note(std::string note);

  /// Adds a bucket and returns its number, which is also its handle. Same order on every rank.
  ///
  /// Throws InvalidArgument if the numbers do not fit together, or the ranks do not lie on their
  /// nodes as the collective wants them to; Unavailable if there are no kernels for its device.
  int AddBucket(BucketSpec spec);

  /// Forgets all buckets, between two steps; on every rank alike. Numbers that were exchanged are
  /// not used again, so that a rank which still exchanges an old bucket is found out; others are,
  /// so that ranks agree which have replaced their buckets once or twice since the last step. An
  /// exchange that has ended keeps its own, and throws: MPI may still read their memory.
  void ClearBuckets();

  void Start(int bucket, Launch launch);

  /// Waits at most `seconds`; returns whether the bucket has arrived. Throws what ended the
  /// exchange. One thread at a time waits for a bucket.
  ///
  /// Gradients on a device may be written a little later. Work that `stream` is given from now on
  /// begins after that.
  bool Wait(int bucket, double seconds, StreamHandle stream = 0);

  const BucketStats& Stats(int bucket) const;

  /// Ends the step: every started bucket has been waited for.
  ///
  /// Throws NonFinite, on every rank alike, if a gradient or a sum was not finite, or if `refuse`
  /// says so (also alike): then every residual is what it was after Accumulate.
  void Commit(const std::string& refuse);

  /// Seconds of each of `repetitions` swaps of `bytes` bytes with `peer`, which calls the same for
  /// this rank: what a round of an exchange costs on this network.
  ///
  /// Runs on the calling thread, while no bucket is in flight. An error ends the exchange, as it
  /// does in a bucket.
  std::vector<double> Swap(int peer, std::int64_t bytes, int repetitions);

  /// To how many ranks Spread sends: as many as a collective sends to at once.
  int SpreadPeers() const;

  /// As Swap, of a message to each of the SpreadPeers ranks behind this one, and from each of those
  /// before it, at once. All ranks call it, with the same numbers.
  std::vector<double> Spread(std::int64_t bytes, int repetitions);

  /// Whether a network connects the devices of all ranks, `device` on this one; where nobody has
  /// tried yet, it is made. Collective, and else as Swap.
  bool ConnectDevices(Device device);

  /// As Swap, of messages from device to device, which were connected (DeviceNetwork::TimedSwaps).
  std::vector<double> SwapBetweenDevices(int peer, std::int64_t bytes, int repetitions);

  /// Seconds that follow such a swap on the device, and that handing blocks up and down takes
  /// (DeviceNetwork::TimedMerges, TimedHandings). This rank alone, while no bucket is in flight; an
  /// error is its own.
  std::vector<double> MergeOnDevice(std::int64_t entries, int repetitions);
  std::vector<double> HandToDevice(std::int64_t entries, int repetitions);

  /// Throws if the exchange has ended.
  void Check();

  /// The same before it is closed: other ranks may have left already.
  void CheckAtEnd();

  /// Where the exchange has ended, leaves all memory of the step alone, as every wait does before
  /// it throws: what was selected is in the residuals again. For whoever does not wait any more.
  void LeaveMemory() noexcept;

  /// Ends the exchange on all ranks, unless it has ended. Does not fail.
  void Fail(std::string_view reason) noexcept;

  /// The same because of an error, whose kind is that of all waits (KindOnOthers).
  void EndBy(const Error& error) noexcept;

  /// The user knows what has ended the exchange, or is about to: nothing else holds up the thread
  /// that was told. Else see Lifeline::Acknowledge. Without effect while it goes on.
  void Acknowledge();

 private:
  enum class State {
    kIdle,
    kStarted,  // a thread of the exchange has it, or will have it
    kGiven,    // a device has all of its step
    kArrived,
  };
  struct Slot {
    explicit Slot(Exchange* exchange)
        : to_select([exchange, this] { exchange->SelectFirst(this); }),
          to_take_through([exchange, this] { exchange->TakeThrough(this); }) {}

    std::unique_ptr<Bucket> bucket;
    const Kernels* kernels = nullptr;  // of the bucket's device
    State state = State::kIdle;
    bool selected = false;  // its entries of this step may have left the residual
    bool was_started = false;

    Worker::Task to_select, to_take_through;

    // Of this step: what it brings, until that is selected; the route if devices can be connected;
    // and what this rank is about to do, where the ranks compare that.
    std::optional<Launch> launch;
    Route route = Route::kCalls;
    std::string intent;

    // Of a device: what has to be over before the gradients are read, and what the caller's stream
    // has to wait for, since the memory belongs to it again.
    StreamHandle stream = 0;
    std::shared_ptr<const Mark> ready, written;
  };

  struct LeftToMpi;

  Slot& SlotOf(int bucket);
  bool AnyIs(State state) const;
  void Reach(State state, Slot* slot);
  /// A part of a bucket's way; `phase` names it in errors. Returns whether it was done.
  template <typename Work>
  bool Run(const Slot& slot, const char* phase, const Work& work);
  /// The same where the exchange has ended, too.
  template <typename Work>
  bool Try(const Slot& slot, const char* phase, const Work& work);
  void SelectFirst(Slot* slot);
  void Select(Slot* slot);
  void TakeThrough(Slot* slot);
  bool AwaitDevice(Slot* slot, double seconds);
  class Measuring;
  template <typename Work>
  void Measure(const std::string& what, const Work& work);
  void End(const Error& error) noexcept { End(error, error.what()); }
  void End(const Error& error, const char* reason) noexcept;
  bool HasEnded() const;
  void PutBackAll();
  void LeaveToMpi();
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
  bool started_ = false;    // one of slots_, in whichever step
  std::int64_t steps_ = 0;  // that ended
  std::string note_;
  bool measuring_ = false;
  std::vector<Buffer> swapped_;
  std::optional<Error> ended_;
  bool put_back_ = false;
  std::unique_ptr<LeftToMpi> left_to_mpi_;

  std::unique_ptr<Worker> exchanger_;
  std::unique_ptr<Worker> selector_;  // none so far: the caller selects
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_EXCHANGE_H_

/// The measurements of an exchange while no bucket is in flight: swaps, also between devices, and
/// the work of a device alone.

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/swap.h"

namespace hvd_sparse {

/// While it lives, no bucket can be started and no other measurement begun.
class Exchange::Measuring {
 public:
  Measuring(Exchange* exchange, const std::string& what) : exchange_(*exchange) {
    const std::lock_guard lock(exchange_.mutex_);
    const bool is_free = !exchange_.AnyIs(State::kStarted) && !exchange_.measuring_;
    Require(is_free, what, " must wait until ",
            exchange_.measuring_ ? "another swap is over" : "no bucket is in flight");
    exchange_.measuring_ = true;
  }
  ~Measuring() {
    const std::lock_guard lock(exchange_.mutex_);
    exchange_.measuring_ = false;
  }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

 private:
  Exchange& exchange_;
};

/// Measures together with other ranks: an error of `work` ends the exchange.
template <typename Work>
void Exchange::Measure(const std::string& what, const Work& work) {
  {
    const Measuring measuring(this, what);
    try {
      work();
    } catch (...) {
      End(CurrentError(Rank(), what));
    }
  }
  if (HasEnded()) ThrowEnded();
}

std::vector<double> Exchange::Swap(int peer, std::int64_t bytes, int repetitions) {
  Check();
  RequireSwap(*comm_, peer, bytes, repetitions);
  std::vector<double> seconds;
  Measure(Concat("a swap with rank ", peer),
          [&] { seconds = TimedSwaps(comm_.get(), peer, bytes, repetitions, &swapped_); });
  return seconds;
}

int Exchange::SpreadPeers() const { return std::min(Size() - 1, kMessagesAtOnce); }

std::vector<double> Exchange::Spread(std::int64_t bytes, int repetitions) {
  Check();
  RequireMessages(bytes, repetitions);
  std::vector<double> seconds;
  Measure("messages to all ranks", [&] {
    seconds = TimedSpreads(comm_.get(), SpreadPeers(), bytes, repetitions, &swapped_);
  });
  return seconds;
}

std::vector<std::vector<double>> Exchange::Gather(const std::vector<double>& numbers,
                                                  const std::string& what) {
  Check();
  std::vector<std::vector<double>> rows;
  Measure(what, [&] { rows = GatheredNumbers(comm_.get(), numbers, what, &swapped_); });
  return rows;
}

bool Exchange::ConnectDevices(Device device) {
  Check();
  Require(!device.IsCpu(), "device must be cuda:0 or the like, got ", device.Name());
  bool connected = false;
  Measure("connecting devices", [&] {
    connected = Size() > 1 && devices_.CollectivesFor(device, comm_.get()) != nullptr;
  });
  return connected;
}

std::vector<double> Exchange::SwapBetweenDevices(int peer, std::int64_t bytes, int repetitions) {
  Check();
  RequireSwap(*comm_, peer, bytes, repetitions);
  Require(bytes > 0, "bytes must be positive between devices, got ", bytes);
  GpuCollectives& gpu_collectives = devices_.Made();
  std::vector<double> seconds;
  Measure(Concat("a swap with the device of rank ", peer), [&] {
    AgreeOnSwaps(comm_.get(), peer, bytes, repetitions, &swapped_);
    seconds = gpu_collectives.TimedSwaps(peer, bytes, repetitions);
  });
  return seconds;
}

std::vector<double> Exchange::MergeOnDevice(std::int64_t entries, int repetitions) {
  Check();
  const Measuring measuring(this, "a merge on a device");
  return devices_.Made().TimedMerges(entries, repetitions);
}

std::vector<double> Exchange::CopyToDevice(std::int64_t entries, int repetitions) {
  Check();
  const Measuring measuring(this, "copying a block to a device");
  return devices_.Made().TimedCopies(entries, repetitions);
}

}  // namespace hvd_sparse

/// The network between the devices of an exchange's ranks, and the collectives that run over it.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// A collective of one bucket whose messages go from device to device. Blocks lie in CPU memory
/// before and after, so gradients may lie on another device, or on none.
class DeviceReduce {
 public:
  virtual ~DeviceReduce() = default;

  /// Like Collective::run, bit for bit, in a plain wire format between two ranks at least. The CPU
  /// waits once for each round that the statistics show, or, where it moves the messages itself,
  /// for each call of them.
  ///
  /// Before any rank waits for another's device, the ranks compare, over ctx's communicator, what
  /// they are about to do: a difference ends the exchange on all of them. If it throws, what
  /// `block` holds is undefined.
  virtual void Run(SparseBlock* block, CollectiveContext& ctx) = 0;
};

class GpuCollectives {
 public:
  virtual ~GpuCollectives() = default;

  /// From now on, an error of the network ends the exchange. Call it when all ranks have
  /// passed the trial.
  virtual void EndTrial() = 0;

  /// Returns the collective of that name, which has device rounds, for one bucket; the network must
  /// outlive it.
  virtual std::unique_ptr<DeviceReduce> Reduce(const std::string& collective) = 0;

  /// For plans: returns the seconds of each of `repetitions` swaps of `bytes` bytes with `peer`,
  /// which makes the same call, in the order of a stream. The CPU waits once for all of them.
  /// Throws the error that ended the exchange meanwhile.
  virtual std::vector<double> TimedSwaps(int peer, std::int64_t bytes, int repetitions) = 0;

  /// Like TimedSwaps, but for the work that follows a swap, on this rank alone: merging two blocks
  /// of `entries` entries and keeping as many.
  virtual std::vector<double> TimedMerges(std::int64_t entries, int repetitions) = 0;

  /// Like TimedMerges, but for the copies around DeviceReduce's rounds: a block of `entries`
  /// entries to the device, and a result of as many back.
  virtual std::vector<double> TimedCopies(std::int64_t entries, int repetitions) = 0;
};

struct DeviceConnection {
  std::unique_ptr<GpuCollectives> collectives;  ///< the communicator must outlive it; may be null

  /// Says which transport users asked for and do not get, or has failed its trial; may be empty.
  std::string warning;
  /// Says how blocks go from device to device, and why so; equal on all ranks.
  std::string how;
};

}  // namespace hvd_sparse

/// What connects the devices of an exchange's ranks, and what runs over it: a collective for blocks
/// of the CPU, and whole steps of gradients that lie on the device.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_
#define HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/device_step.h"
#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// One bucket's; keeps memory of the device from step to step. Blocks lie in memory of the CPU,
/// before and after; in between they go from device to device. So gradients may lie on another
/// device, or on none.
class DeviceReduce {
 public:
  virtual ~DeviceReduce() = default;

  /// As SparseAllreduce::Run of gtopk, bit for bit, for blocks that were trimmed to ctx.k entries
  /// and a plain wire format or one that packs indices only. Waits on the CPU once for all rounds,
  /// or, where the CPU moves the messages, for each.
  ///
  /// First the ranks compare, by ctx's communicator, what they are about to do: a difference ends
  /// the exchange on all of them, before any of them waits for another's device.
  virtual void Run(SparseBlock* block, CollectiveContext& ctx) = 0;
};

class DeviceNetwork {
 public:
  virtual ~DeviceNetwork() = default;

  /// gTop-k of a bucket. Lives no longer than this.
  virtual std::unique_ptr<DeviceReduce> GTopK() = 0;

  /// Whole steps of a bucket, selected by `gaussian`. Lives no longer than this.
  virtual std::unique_ptr<DeviceStep> Step(const DeviceStepSpec& spec) = 0;

  /// For plans: the seconds of each of so many swaps of `bytes` bytes with `peer`, whose network is
  /// asked for the same, in the order of a stream. Waits on the CPU once, for all of them; throws
  /// what ended the exchange meanwhile.
  virtual std::vector<double> TimedSwaps(int peer, std::int64_t bytes, int repetitions) = 0;

  /// The same of what follows a swap, by this rank alone: merging two blocks of so many entries,
  /// and keeping as many.
  virtual std::vector<double> TimedMerges(std::int64_t entries, int repetitions) = 0;

  /// And of what DeviceReduce does around its rounds, by this rank alone: handing a block of so
  /// many entries up to the device, and a result of as many down.
  virtual std::vector<double> TimedHandings(std::int64_t entries, int repetitions) = 0;
};

struct DeviceConnection {
  std::unique_ptr<DeviceNetwork> network;  ///< lives no longer than the communicator; may be null
  std::string news;  ///< what users asked for and do not get, as a warning; may be empty
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_

/// What connects the devices of an exchange's ranks, and a collective that runs over it.
///
/// Blocks lie in memory of the CPU, before and after; in between they go from device to device. So
/// gradients may lie on another device, or on none.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_
#define HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_

#include <memory>
#include <string>

#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// One bucket's; keeps memory of the device from step to step.
class DeviceReduce {
 public:
  virtual ~DeviceReduce() = default;

  /// As SparseAllreduce::Run of gtopk, bit for bit, for blocks that were trimmed to ctx.k entries
  /// and a plain wire format or one that packs indices only. Waits on the CPU once, for all rounds.
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
};

struct DeviceConnection {
  std::unique_ptr<DeviceNetwork> network;  ///< lives no longer than the communicator
  std::string problem;                     ///< why there is none
  bool declined = false;                   ///< since a rank does not want one
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICE_NETWORK_H_

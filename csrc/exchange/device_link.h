/// The network between the devices of an exchange's ranks, made when a bucket on a device is first
/// exchanged, or for a measurement. If all ranks have it, all buckets whose route needs it use it,
/// wherever their gradients lie.

#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "csrc/base/types.h"
#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

class DeviceLink {
 public:
  /// True if there is a network, or may be one because it has not been tried yet. Callable from any
  /// thread.
  bool MayBeThere() const;

  /// Returns the network, or null if not all ranks have one; warns once about transports that users
  /// asked for and do not get, or that failed their trial. The first call for a bucket on `device`
  /// is collective. One thread at a time.
  GpuCollectives* CollectivesFor(Device device, Communicator* comm);

  /// Says how blocks go from device to device, and why so; equal on all ranks. Empty if that has
  /// not been tried. Callable from any thread.
  std::string How() const;

  /// Returns the network that was made; throws InvalidArgument if there is none.
  GpuCollectives& Made() const;

 private:
  mutable std::mutex mutex_;
  std::optional<DeviceConnection> made_;  // empty: not tried yet
};

}  // namespace hvd_sparse

/// Which NCCL a program of this build would use: the one place that knows whether it was built in.

#ifndef HVD_SPARSE_COLLECTIVES_NCCL_FOR_H_
#define HVD_SPARSE_COLLECTIVES_NCCL_FOR_H_

#include <string>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/collectives/device_network.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Whether this build can use NCCL.
bool BuiltWithNccl();

struct NcclFacts {
  std::string version;  ///< "2.27.3"
  std::string path;     ///< of the file that was loaded
};

/// Where else NCCL may be, for when it is loaded.
void LookForNcclAt(const std::vector<std::string>& paths);

/// Loads NCCL, for this process and for good, unless that has happened: the file that
/// HVD_SPARSE_NCCL_LIBRARY names, else libnccl.so.2 where the system's loader looks, else the first
/// that is there of what LookForNcclAt named.
///
/// Throws Unavailable, and says what to do: there is none, or it is too old, or this build has no
/// NCCL.
NcclFacts FindNccl();

/// NCCL between all ranks of `comm`, on `device` of this one: on all of them, or on none and for
/// the same reason. Collective.
///
/// Throws, on all ranks alike, what HVD_SPARSE_NCCL asks for and cannot have, and what ends the
/// exchange.
DeviceConnection ConnectDevices(Communicator* comm, Device device);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_NCCL_FOR_H_

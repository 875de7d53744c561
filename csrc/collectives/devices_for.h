/// What can connect the devices of ranks that run this build: the one place that knows which means
/// were built in.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICES_FOR_H_
#define HVD_SPARSE_COLLECTIVES_DEVICES_FOR_H_

#include <string>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/collectives/device_network.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Whether this build knows any means to connect devices.
bool CanConnectDevices();

/// What this process says of means to connect devices.
struct MeansFacts {
  std::string name;      ///< as users know it
  std::string variable;  ///< of the environment, by which they ask for it
  std::string problem;   ///< why it is not used, if only because nobody asks; empty if it can be
  std::string refusal;   ///< why exchanges of gradients on devices are refused here; else empty
};

/// Of a process with gradients on `device` that is no rank yet: of each means of this build, in the
/// order in which they are preferred. For `memory_problem` see Communicator::DeviceMemoryProblem.
std::vector<MeansFacts> AskMeans(const std::string& memory_problem, Device device);

/// What connects `device` of this rank with those of all ranks of `comm`: NCCL before CUDA-aware
/// MPI, where all of them want it and have it. The same on all ranks. Collective.
///
/// Throws, on all ranks alike, what HVD_SPARSE_NCCL or HVD_SPARSE_CUDA_AWARE_MPI ask for and cannot
/// have, and what ends the exchange.
DeviceConnection ConnectDevices(Communicator* comm, Device device);

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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICES_FOR_H_

/// The ways of connecting devices that this build has: the only place that knows which were built
/// in.

#pragma once

#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Returns true if this build has any way of connecting devices.
bool CanConnectDevices();

/// Facts about one way of connecting devices, in this process.
struct GpuTransportFacts {
  std::string name;      ///< as users know it
  std::string variable;  ///< environment variable by which they ask for it
  std::string problem;   ///< why it is not used; empty if it can be
  std::string refusal;   ///< why exchanges of gradients on devices are refused here; else empty
};

/// Returns the facts about each option of this build, in order of preference, for a process with
/// gradients on `device` that is not a rank yet. For `memory_problem`, see
/// Communicator::DeviceMemoryProblem.
std::vector<GpuTransportFacts> AskGpuTransports(const std::string& memory_problem, Device device);

/// Connects `device` of this rank with those of all ranks of `comm`, by NCCL, which is tried, or
/// else by CUDA-aware MPI, if all ranks want it and have it. All ranks get the same. Where only MPI
/// is asked for, NCCL is not used. Collective.
///
/// Throws, on all ranks alike, if HVD_SPARSE_NCCL or HVD_SPARSE_CUDA_AWARE_MPI is invalid or
/// insists on an option that cannot be used, and if the exchange ends.
DeviceConnection ConnectDevices(Communicator* comm, Device device);

/// Returns true if this build can use NCCL.
bool BuiltWithNccl();

struct NcclFacts {
  std::string version;  ///< "2.27.3"
  std::string path;     ///< path of the loaded file
};

/// Sets further paths at which FindNccl looks for NCCL, in place of those set before.
void LookForNcclAt(const std::vector<std::string>& paths);

/// Loads NCCL at the first call, once and for all in this process: the file that
/// HVD_SPARSE_NCCL_LIBRARY names, else libnccl.so.2 as the system's loader finds it, else the first
/// file that exists of those set by LookForNcclAt.
///
/// Throws Unavailable, with advice, if NCCL is missing or too old, or if this build has none.
NcclFacts FindNccl();

}  // namespace hvd_sparse

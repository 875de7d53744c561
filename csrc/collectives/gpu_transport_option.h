/// A way to connect the devices of an exchange's ranks: NCCL, or an MPI that takes their memory.
///
/// The ranks first agree on one, see device_agreement.h.

#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// An identifier of a new network, sent by rank 0 to all ranks that are to join it.
using Invitation = std::array<char, 128>;

struct GpuTransportOption {
  std::string name;      ///< as users read it
  std::string variable;  ///< the environment variable by which users ask for it: 0, auto or 1
  bool is_default;       ///< true if it is used where that is unset, and therefore tried first

  /// Checks that this rank can use it, for memory of `device`; `memory_problem` is the result of
  /// DeviceMemoryProblem for the ranks' communicator. Returns the facts that rank 0 compares, at
  /// most 399 bytes of text. Throws an error that says why if the rank cannot use it.
  std::function<std::string(const std::string& memory_problem, int device)> describe;

  /// Makes the network of all ranks. Collective; the communicator must outlive the network. An
  /// error ends the exchange. If `is_default`, this also tries the network, and an error is this
  /// rank's alone: the ranks must agree on it (AgreeOnTrial).
  std::function<std::unique_ptr<GpuCollectives>(Communicator* comm, int device,
                                                const Invitation& invitation)>
      connect = nullptr;

  /// On rank 0: returns why ranks with these descriptions, in rank order, cannot use it together;
  /// empty if they can.
  std::function<std::string(const std::vector<std::string>& ranks)> why_not = [](const auto&) {
    return "";
  };

  /// On rank 0, once all ranks can use it: returns the invitation. Throws if they cannot after all.
  std::function<Invitation()> invite = [] { return Invitation{}; };
};

/// The name and the variable of NCCL, for builds with it and without it.
inline constexpr const char *kNcclName = "NCCL", *kNcclVariable = "HVD_SPARSE_NCCL";

}  // namespace hvd_sparse

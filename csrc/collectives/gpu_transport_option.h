/// A way to connect the devices of an exchange's ranks: NCCL, or an MPI that takes their memory.
///
/// The ranks first agree on one, see device_agreement.h.

#ifndef HVD_SPARSE_COLLECTIVES_GPU_TRANSPORT_OPTION_H_
#define HVD_SPARSE_COLLECTIVES_GPU_TRANSPORT_OPTION_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// An identifier of a new network, sent by rank 0 to all ranks that are to join it.
using Invitation = std::array<char, 128>;

class GpuTransportOption {
 public:
  virtual ~GpuTransportOption() = default;

  /// The name that users read.
  virtual const char* Name() const = 0;

  /// The environment variable by which users ask for it: 0, auto or 1.
  virtual const char* Variable() const = 0;

  /// Checks that this rank can use it, for memory of `device`; `memory_problem` is the result of
  /// DeviceMemoryProblem for the ranks' communicator. Returns the facts that rank 0 compares, at
  /// most 399 bytes of text. Throws an error that says why if the rank cannot use it.
  virtual std::string Describe(const std::string& memory_problem, int device) const = 0;

  /// On rank 0: returns why ranks with these descriptions, in rank order, cannot use it together;
  /// empty if they can.
  virtual std::string WhyNot(const std::vector<std::string>& /*ranks*/) const { return ""; }

  /// On rank 0, once all ranks can use it: returns the invitation. Throws if they cannot after all.
  virtual Invitation Invite() const { return {}; }

  /// Makes the network of all ranks. Collective; an error ends the exchange. The communicator must
  /// outlive the network.
  virtual std::unique_ptr<GpuCollectives> Connect(Communicator* comm, int device,
                                                  const Invitation& invitation) const = 0;
};

/// The name and the variable of NCCL, for builds with it and without it.
class NcclByName : public GpuTransportOption {
 public:
  const char* Name() const final { return "NCCL"; }
  const char* Variable() const final { return "HVD_SPARSE_NCCL"; }
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_GPU_TRANSPORT_OPTION_H_

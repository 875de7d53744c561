/// A way to connect the devices of an exchange's ranks: NCCL, or an MPI that takes their memory.
///
/// Which one the ranks use they agree on first, see device_agreement.h.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICE_MEANS_H_
#define HVD_SPARSE_COLLECTIVES_DEVICE_MEANS_H_

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/device_network.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// What rank 0 hands to all ranks, for them to meet by.
using Invitation = std::array<char, 128>;

class DeviceMeans {
 public:
  virtual ~DeviceMeans() = default;

  /// As users read it.
  virtual const char* Name() const = 0;

  /// The environment variable by which users ask for it: 0, auto or 1.
  virtual const char* Variable() const = 0;

  /// Finds out whether this rank can use it, for memory of `device`; `memory_problem` is what
  /// DeviceMemoryProblem says of the ranks' communicator. Returns what rank 0 has to know of that,
  /// at most 399 bytes of text; throws why it cannot.
  virtual std::string Describe(const std::string& memory_problem, int device) const = 0;

  /// On rank 0: why ranks that describe themselves so, in their order, cannot use it together;
  /// empty if they can.
  virtual std::string WhyNot(const std::vector<std::string>& /*ranks*/) const { return ""; }

  /// On rank 0, of ranks that can. Throws why not, after all.
  virtual Invitation Invite() const { return {}; }

  /// The network that all ranks make together. Collective; throws what ends the exchange. The
  /// communicator outlives it.
  virtual std::unique_ptr<DeviceNetwork> Connect(Communicator* comm, int device,
                                                 const Invitation& invitation) const = 0;
};

/// NCCL as users know it, in builds that have it and in those that have left it out.
class NcclByName : public DeviceMeans {
 public:
  const char* Name() const final { return "NCCL"; }
  const char* Variable() const final { return "HVD_SPARSE_NCCL"; }
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICE_MEANS_H_

/// By what means the devices of an exchange's ranks are connected: the same for all of them.
///
/// A rank that called NCCL while another cannot would wait for ever. So each says beforehand what
/// it has and what its user wants, by way of the exchange's own messages; rank 0 decides, and tells
/// all of them the same.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICE_AGREEMENT_H_
#define HVD_SPARSE_COLLECTIVES_DEVICE_AGREEMENT_H_

#include <string>
#include <vector>

#include "csrc/collectives/device_means.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Means in the order in which they are preferred; the same on all ranks.
using MeansTable = std::vector<const DeviceMeans*>;

/// What a user asks for by the variable of some means.
enum class Wish {
  kNever,       ///< unset, or 0
  kIfPossible,  ///< auto
  kAlways,      ///< 1: an exchange whose ranks cannot use them is refused
};

/// What a rank says of some means.
struct Statement {
  Wish wish = Wish::kNever;
  std::string error;        ///< of what the user asked for; empty if there is none
  std::string problem;      ///< why this rank does not use them; empty if it can
  std::string description;  ///< see DeviceMeans::Describe
};

/// Of this process, with gradients on `device`: what its user asks for, and only if that is
/// something, whether it can be had (DeviceMeans::Describe). Throws nothing: what is wrong is in
/// there.
Statement StatementOf(const DeviceMeans& means, const std::string& memory_problem, int device);

/// What a user is told who insists on means that cannot be used.
std::string InsistedInVain(const DeviceMeans& means, const std::string& problem);

/// The same on all ranks.
struct DeviceAgreement {
  const DeviceMeans* means = nullptr;  ///< the first that all ranks want and can use; null: none
  std::string
      unmet;  ///< what all ranks want rather than that, and why it is not used; may be empty
  Invitation invitation = {};
};

/// Decides for all ranks of `comm`; `own` is this rank's statement of each means. Collective.
///
/// Throws, on all ranks alike, InvalidArgument if a variable has no such value on one of them, and
/// Unavailable if one of them insists on something that cannot be used.
DeviceAgreement AgreeOnMeans(Communicator* comm, const MeansTable& table,
                             const std::vector<Statement>& own);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICE_AGREEMENT_H_

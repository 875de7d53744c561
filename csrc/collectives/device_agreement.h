/// How the ranks of an exchange agree on one way of connecting their devices.
///
/// A rank that called NCCL while another cannot would wait for ever. So each rank first states what
/// it has and what its user wants, in the exchange's own messages; rank 0 decides and sends all
/// ranks the same decision.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/gpu_transport_option.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Options in order of preference; equal on all ranks.
using GpuTransportOptions = std::vector<const GpuTransportOption*>;

/// A user's choice, made by the environment variable of an option.
enum class Wish {
  kNever,       ///< 0, or unset for an option that is not used by default
  kByDefault,   ///< unset: where the ranks can use it
  kIfPossible,  ///< auto: likewise, with a warning where they cannot
  kAlways,      ///< 1: an exchange whose ranks cannot use the option is refused
};

/// A rank's statement about an option.
struct Statement {
  Wish wish = Wish::kNever;
  std::string error;        ///< why the variable's value is invalid; empty if it is valid
  std::string problem;      ///< why this rank does not use the option; empty if it can
  bool timed_out = false;   ///< the problem is that another rank did not come, which may know why
  std::string description;  ///< see GpuTransportOption::describe
};

/// Returns this process's statement about `option`, for gradients on `device`. Tries the option
/// (GpuTransportOption::describe) unless the user forbids it. Does not throw: errors are in the
/// statement.
Statement StatementOf(const GpuTransportOption& option, const std::string& memory_problem,
                      int device);

/// Returns the error for a user who insists on an option that cannot be used.
std::string RequiredButUnavailable(const GpuTransportOption& option, const std::string& problem);

/// The decision of rank 0; equal on all ranks.
struct DeviceAgreement {
  /// The first option that all ranks want and can use; null: none.
  const GpuTransportOption* option = nullptr;

  /// Options that users asked for and do not get, or whose trial failed, and why; may be empty.
  std::string unmet;

  /// All preferred options, and why they are not used; may be empty.
  std::string why;

  Invitation invitation = {};
};

/// Agrees on an option with all ranks of `comm`; `own` is this rank's statement about each.
/// Collective.
///
/// Throws on all ranks alike: InvalidArgument if a variable has an invalid value on one of them,
/// Unavailable if one of them insists on an option that cannot be used.
DeviceAgreement AgreeOnGpuTransport(Communicator* comm, const GpuTransportOptions& table,
                                    const std::vector<Statement>& own);

/// Returns `agreed` if its option has passed its trial on all ranks of `comm`; otherwise without
/// the option, and with the reason. `own` is this rank's statement about the option, `problem` the
/// error of its trial, if any. Collective.
///
/// Throws, on all ranks alike, Unavailable if one met an error and one insists on the option.
DeviceAgreement AgreeOnTrial(Communicator* comm, DeviceAgreement agreed, Statement own,
                             const std::optional<Error>& problem);

}  // namespace hvd_sparse

/// How the ranks of an exchange agree on one way of connecting their devices.
///
/// A rank that called NCCL while another cannot would wait for ever. So each rank first states what
/// it has and what its user wants, in the exchange's own messages; rank 0 decides and sends all
/// ranks the same decision.

#pragma once

#include <string>
#include <vector>

#include "csrc/collectives/gpu_transport_option.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Options in order of preference; equal on all ranks.
using GpuTransportOptions = std::vector<const GpuTransportOption*>;

/// A user's choice, made by the environment variable of an option.
enum class Wish {
  kNever,       ///< unset, or 0
  kIfPossible,  ///< auto
  kAlways,      ///< 1: an exchange whose ranks cannot use the option is refused
};

/// A rank's statement about an option.
struct Statement {
  Wish wish = Wish::kNever;
  std::string error;        ///< why the variable's value is invalid; empty if it is valid
  std::string problem;      ///< why this rank does not use the option; empty if it can
  std::string description;  ///< see GpuTransportOption::describe
};

/// Returns this process's statement about `option`, for gradients on `device`. Tries the option
/// (GpuTransportOption::describe) only if the user asks for it. Does not throw: errors are in the
/// statement.
Statement StatementOf(const GpuTransportOption& option, const std::string& memory_problem,
                      int device);

/// Returns the error for a user who insists on an option that cannot be used.
std::string RequiredButUnavailable(const GpuTransportOption& option, const std::string& problem);

/// The decision of rank 0; equal on all ranks.
struct DeviceAgreement {
  /// The first option that all ranks want and can use; null: none.
  const GpuTransportOption* option = nullptr;

  /// Preferred options that all ranks want and cannot use, and why; may be empty.
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

}  // namespace hvd_sparse

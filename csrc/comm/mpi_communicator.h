/// A communicator whose ranks are MPI processes.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

struct MpiOptions {
  std::vector<int> world_ranks;  ///< number of each rank in MPI_COMM_WORLD, in order
  std::vector<int> machines;     ///< machine of each rank, in order; equal numbers share memory
  int tag = 0;                   ///< distinguishes communicators that are created at the same time
  WaitLimits limits;
  /// Longer messages are sent in chunks of this size, since MPI counts bytes in an int. Between
  /// machines chunks are never longer than what Open MPI sends over TCP eagerly.
  std::int64_t max_message_bytes = std::int64_t{1} << 30;
};

/// Makes a communicator; collective over `world_ranks`. MPI must have been initialised with
/// MPI_THREAD_MULTIPLE.
///
/// Every wait alternates between tests and sleeps (see patience.h), and ends when the lifeline
/// reports that the exchange has ended. Throws Unavailable, saying what to do, if MPI lacks a
/// required feature.
std::unique_ptr<Communicator> MakeMpiCommunicator(const MpiOptions& options,
                                                  std::shared_ptr<Lifeline> lifeline);

/// Returns this process's rank in MPI_COMM_WORLD; throws Unavailable if MPI is not initialised.
int MpiWorldRank();

/// Returns the first line of MPI_Get_library_version.
std::string MpiLibraryVersion();

struct MpiGrants {
  std::string thread_level;    ///< "MPI_THREAD_MULTIPLE"
  std::string memory_problem;  ///< see Communicator::DeviceMemoryProblem
};

/// Initialises and finalizes MPI to find out what it grants. Only for a process that does nothing
/// else.
MpiGrants AskMpi();

}  // namespace hvd_sparse

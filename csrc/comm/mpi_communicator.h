/// Ranks as MPI processes.

#ifndef HVD_SPARSE_COMM_MPI_COMMUNICATOR_H_
#define HVD_SPARSE_COMM_MPI_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/patience.h"

namespace hvd_sparse {

struct MpiOptions {
  std::vector<int> world_ranks;  ///< of the exchange's ranks, in order, in MPI_COMM_WORLD
  std::vector<int> machines;     ///< of the ranks, in order; equal numbers share memory
  int tag = 0;                   ///< tells communicators apart that are made at the same time
  WaitLimits limits;
  /// Longer messages travel in pieces of this size: MPI counts bytes in an int. Between machines
  /// pieces are never longer than what Open MPI sends over TCP without asking first.
  std::int64_t max_message_bytes = std::int64_t{1} << 30;
};

/// Collective over `world_ranks`. MPI must have been initialised with MPI_THREAD_MULTIPLE.
///
/// Every wait tests and sleeps (see patience.h) and ends when the lifeline reports that the
/// exchange has. Throws Unavailable, saying what to do, if MPI does not offer what is needed.
std::unique_ptr<Communicator> MakeMpiCommunicator(const MpiOptions& options,
                                                  std::shared_ptr<Lifeline> lifeline);

/// This process's rank in MPI_COMM_WORLD; throws Unavailable if MPI is not initialised.
int MpiWorldRank();

/// First line of MPI_Get_library_version.
std::string MpiLibraryVersion();

struct MpiGrants {
  std::string thread_level;    ///< "MPI_THREAD_MULTIPLE"
  std::string memory_problem;  ///< see Communicator::DeviceMemoryProblem
};

/// Initialises and finalizes MPI to find out what it grants: only for a process that does nothing
/// else.
MpiGrants AskMpi();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_MPI_COMMUNICATOR_H_

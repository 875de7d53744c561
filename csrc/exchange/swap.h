/// Messages between ranks while no bucket is in flight: equal ones, timed, which say what the
/// rounds of an exchange cost on this network, and numbers that all ranks get to know.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Throws InvalidArgument unless the numbers are not negative and, in a swap, `peer` is another
/// rank.
void RequireMessages(std::int64_t bytes, int repetitions);
void RequireSwap(const Communicator& comm, int peer, std::int64_t bytes, int repetitions);

/// Sends `bytes` bytes to `peer` and receives as many from it at the same time, again and again.
///
/// Returns the seconds of each repetition. `memory` grows to what is sent and received; after an
/// error the communicator may still read it. Throws what Transfer throws, and Disagreement if the
/// peer swaps another number of bytes.
std::vector<double> TimedSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                               std::vector<Buffer>* memory);

/// Like TimedSwaps, but with messages to the `peers` next ranks and from as many before this one,
/// all in flight at once. All ranks pass the same numbers.
std::vector<double> TimedSpreads(Communicator* comm, int peers, std::int64_t bytes, int repetitions,
                                 std::vector<Buffer>* memory);

/// Throws Disagreement, on both ranks, unless `peer` swaps as many bytes as often; called before
/// the ranks wait for each other's devices. `memory` as above.
void AgreeOnSwaps(Communicator* comm, int peer, std::int64_t bytes, int repetitions,
                  std::vector<Buffer>* memory);

/// Sends `numbers` to all ranks; returns those of each rank, in rank order. `what` names the ranks'
/// common operation, for waits and errors; `memory` as above. Throws Disagreement unless all ranks
/// pass as many.
std::vector<std::vector<double>> GatheredNumbers(Communicator* comm,
                                                 const std::vector<double>& numbers,
                                                 const std::string& what,
                                                 std::vector<Buffer>* memory);

}  // namespace hvd_sparse

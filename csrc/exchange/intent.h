/// The intent of a rank: a text that says what it is about to exchange, compared between ranks.
///
/// Before a bucket is exchanged for the first time, and with HVD_SPARSE_CHECK=1 every time, each
/// rank sends its intent to the next one in a ring and receives that of the one before: if all
/// neighbours agree, all ranks do. That is one round, of less than 1 KiB. Without it, ranks that
/// are about to send different messages, or to connect their devices, could wait for each other.

#pragma once

#include <cstdint>
#include <string>

#include "csrc/collectives/bucket_spec.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

/// Returns "step 17, bucket 3 'fc1.weight': 4096 float32 entries, k 41, gtopk, ..."; equal on two
/// ranks if they are about to do the same. `step` counts the steps of the exchange, from 0; `note`
/// is a text that must be equal, too.
std::string IntentOf(const BucketSpec& spec, int bucket, std::int64_t step, const Launch& launch,
                     const std::string& note);

/// Returns once the neighbours have the same intent. `what` names the wait in warnings and errors.
///
/// Throws Disagreement, with both intents, if the rank before this one has another.
void RequireSameIntent(Communicator* comm, const std::string& intent, const std::string& what);

}  // namespace hvd_sparse

/// What a rank is about to exchange, in words, and that all ranks are about to do the same.
///
/// Before a bucket is exchanged for the first time, and with HVD_SPARSE_CHECK=1 every time, each
/// rank tells the next one in a ring what it is about to do, and hears it from the one before:
/// where all neighbours agree, all ranks do. That is one round, of less than 1 KiB. Ranks that are
/// about to move different messages, or to connect their devices, could wait for each other
/// otherwise.

#ifndef HVD_SPARSE_EXCHANGE_INTENT_H_
#define HVD_SPARSE_EXCHANGE_INTENT_H_

#include <cstdint>
#include <string>

#include "csrc/comm/communicator.h"
#include "csrc/exchange/bucket_spec.h"

namespace hvd_sparse {

/// "step 17, bucket 3 'fc1.weight': 4096 float32 entries, k 41, gtopk, ..."; equal on two ranks if
/// what they are about to do is. `step` counts those of the exchange, from 0; `note` is what else
/// has to be equal.
std::string IntentOf(const BucketSpec& spec, int bucket, std::int64_t step, const Launch& launch,
                     const std::string& note);

/// Returns once the neighbours are about to do the same. `what` is part of what waiting says.
///
/// Throws Disagreement, with both sides, if the rank before this one is not.
void RequireSameIntent(Communicator* comm, const std::string& intent, const std::string& what);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_INTENT_H_

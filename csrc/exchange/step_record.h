/// The record of a bucket's step, whichever way it runs (bucket_step.h): its inputs, its verdicts
/// and its statistics, with the bucket's constants.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/base/verdict.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// Statistics of a bucket in one step.
struct BucketStats {
  int number = 0;      ///< of the bucket
  std::string bucket;  ///< its name
  std::int64_t step = 0;
  Route route = Route::kCalls;
  std::int64_t numel = 0;
  std::int64_t asked = 0;     ///< entries: the sum of the ks
  std::int64_t selected = 0;  ///< entries that this rank sent
  std::int64_t reduced = 0;   ///< entries of the sum
  std::int64_t averaged = 0;  ///< entries that this rank averaged by a rule that bears bad ranks
  std::vector<std::int64_t> left_out;  ///< by rank, those of them that its values did not go into
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double select_seconds = 0;    ///< accumulate and select
  double exchange_seconds = 0;  ///< allreduce, settle and scatter

  // Times in seconds of std::chrono::steady_clock. From select_end to exchange_begin the bucket
  // waits for those before it.
  double ready = 0;  ///< the last gradient came
  double select_begin = 0, select_end = 0;
  double exchange_begin = 0, settle_begin = 0, exchange_end = 0;
  double wait_begin = 0, wait_end = 0;  ///< of the first wait for the bucket
  std::vector<RoundTimes> rounds;  ///< of the collective, between exchange_begin and settle_begin

  /// Sets both durations from the times.
  void SetDurations();
};

struct StepRecord {
  /// Throws InvalidArgument if the numbers do not fit together.
  StepRecord(int id, BucketSpec spec);

  // The bucket's constants.
  const int id;
  const BucketSpec spec;
  const std::int64_t numel;
  const std::unique_ptr<const Sparsifier> sparsifier;
  const Collective& collective;

  // The inputs and outcome of one step.
  Launch launch;
  Verdict own_verdict;         // on this rank's gradients; later on its node's, if nodes are summed
  Verdict verdict;             // equal on all ranks, once the step has arrived
  std::int64_t overflows = 0;  // results that are not finite in the type of their gradient
  BucketStats stats;

  std::int64_t steps = 0;  // that have begun
  CollectiveScratch scratch;

  void Begin(Launch next);

  /// Returns the header of this rank's first message in the step.
  BlockHeader Identity() const;

  /// Returns the context of a collective that takes the whole bucket, and as many entries of it as
  /// are asked for.
  CollectiveContext ContextOf(Communicator& comm, const Kernels& kernels);

  /// Adds the messages of a context to the statistics.
  void AddUp(CollectiveContext* ctx);

  /// Throws unless the verdict covers this rank's NaN and Inf: each rank sends its own, and the
  /// worst is kept.
  void RequireKnown(int rank) const;
};

}  // namespace hvd_sparse

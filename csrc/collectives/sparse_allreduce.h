/// A collective turns the blocks that the ranks selected into one block that all of them hold.
///
/// docs/contributing.md says how to add one. The tests of the laws find it through the registry.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/sparse_block.h"
#include "csrc/collectives/aggregation_rule.h"
#include "csrc/collectives/collective_options.h"
#include "csrc/collectives/dense_block.h"
#include "csrc/comm/communicator.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

/// Positions in the bucket, and the rounding errors of the values there.
using RoundingErrors = std::vector<std::pair<Index, float>>;

/// Scratch memory of a bucket's collective: grows as needed and is reused.
struct CollectiveScratch {
  SparseBlock theirs, merged;
  Buffer messages, records;
  std::vector<SparseBlock> blocks;
  DenseBlock dense, their_dense;   // for recursive_doubling
  Buffer outgoing, incoming;       // messages of a format that is not plain
  RoundingErrors rounding_errors;  // of entries in flight, see Narrow
  std::vector<float> errors;

  std::vector<SparseBlock> parts;  // to owners
};

/// A block to send to a rank, and one to receive from a rank, of at most `room` entries.
struct BlockOut {
  int peer;
  const SparseBlock* block;
  Content content = Content::kSums;
};
struct BlockIn {
  int peer;
  SparseBlock* block;
  std::int64_t room;
};

/// One transfer of a collective: its times, and the bytes of this rank.
struct RoundTimes {
  std::string name;
  double begin = 0, end = 0;  ///< seconds of std::chrono::steady_clock
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
};

/// The context in which a collective runs: its communicator, kernels, memory and options.
struct CollectiveContext {
  Communicator& comm;
  const Kernels& kernels;
  CollectiveScratch& scratch;
  std::int64_t k;         ///< entries asked for in the bucket, the same on every rank
  std::int64_t capacity;  ///< the most entries that any rank's selected block can hold
  std::string what;       ///< the bucket, for warnings and errors
  std::int64_t numel = kMaxBucketNumel;  ///< entries of the bucket
  CollectiveOptions options = {};
  WireFormat wire = {};  ///< format of all messages, equal on every rank

  std::int64_t bytes_sent = 0;  ///< by this rank, headers included; counted by Transfer
  std::int64_t bytes_received = 0;
  std::vector<RoundTimes> rounds = {};  ///< in the order in which they began; noted by Transfer
  std::vector<Span<Incoming>> in_flight = {};  ///< of transfers that have begun; the last of rounds

  /// For shard_topk: adds the blocks of all ranks to this rank's shard, and makes `sums` what it
  /// sends on; see csrc/exchange/shard_owner.h.
  std::function<void(std::vector<SparseBlock>* arrived, SparseBlock* sums)> take_sums = {};

  /// Runs Communicator::Transfer, counted and timed. For messages that are not blocks.
  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& round);

  /// Run Communicator::Begin and Wait, counted and timed likewise.
  void Begin(Span<const Outgoing> out, Span<Incoming> in, const std::string& round);
  void Wait();

  /// Sends a finished block; in a format with narrow values, after Narrow. Content::kVerbatim is
  /// for a peer that takes over the block as its own.
  void Send(const SparseBlock& block, int peer, const std::string& round,
            Content content = Content::kSums);

  /// Receives a block of at most `room` entries, and checks that it belongs here (see Agree).
  void Receive(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
               const std::string& round);

  /// Sends to and receives from the same peer at the same time.
  void Swap(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
            const std::string& round);

  /// Sends and receives several blocks at the same time; like Send and Receive.
  void MoveBlocks(SparseBlock* own, Span<const BlockOut> out, Span<const BlockIn> in,
                  const std::string& round);

  /// Returns every rank's block, in rank order, each of at most `room` entries; `own` is this
  /// rank's. Bruck's algorithm: ceil(log2 P) rounds, in which a rank sends P - 1 blocks in all.
  /// Agrees with all ranks. The blocks lie in the scratch memory.
  std::vector<SparseBlock>& AllgatherBlocks(SparseBlock* own, std::int64_t room,
                                            const std::string& round);

  /// Rounds the values of a block to the wire type, in place, just before they are sent, so that
  /// this rank continues with the values that its peers receive. Does nothing if values are sent as
  /// float32.
  ///
  /// The rounding errors must stay with exactly one of the ranks that hold this block: on that one,
  /// `keeps_errors` is true, and the errors are recorded. That is the rank itself for its own
  /// values, and for a sum the lowest of the ranks that hold it, or the only one that computed it.
  void Narrow(SparseBlock* block, bool keeps_errors);

  /// Discards the errors of entries that are no longer in `block` or, if `survived_only`, lack the
  /// survived bit there: no rank will receive those entries, and the ranks put back what they took.
  /// Call it wherever a block drops entries that could return through a peer later.
  void KeepErrorsOf(const SparseBlock& block, bool survived_only = false);

  /// Returns every rank's record, back to back in rank order. For data other than blocks: a few
  /// numbers, the same number of bytes on every rank. The memory is valid until the next call.
  const std::uint8_t* AllgatherRecords(const void* own, std::int64_t bytes,
                                       const std::string& round);

  /// Throws Disagreement unless `theirs`, received from `peer`, belongs to the same bucket and
  /// step as `own`, and to a rank with the same options. `own` notes the verdict of `theirs`.
  void Agree(BlockHeader* own, const BlockHeader& theirs, int peer) const;
  void Agree(SparseBlock* own, const SparseBlock& theirs, int peer) const {
    Agree(&own->header(), theirs.header(), peer);
  }

  /// Throws Disagreement unless `peer` sends messages of this context's format.
  void AgreeOnFormat(std::uint8_t theirs, int peer) const;

  /// Compares the headers of all ranks over the CPU, before they wait for each other's devices.
  /// Throws like Agree, on all ranks, and if their routes differ. `own` gets the worst verdict of
  /// all ranks.
  ///
  /// `counts`, as many on every rank, go along: of entries of messages, at most `room` each.
  /// Returns those of all ranks, in rank order; throws ExchangeFailed if one is not in [0, room].
  std::vector<std::int64_t> AgreeBeforehand(BlockHeader* own,
                                            const std::vector<std::int64_t>& counts,
                                            std::int64_t room, const std::string& round);

  /// Runs `read`, which parses a message of `peer`. Rethrows its errors with the names of that rank
  /// and of the bucket.
  template <typename Read>
  void Reading(int peer, Read read) const {
    try {
      read();
    } catch (const Error& error) {
      Throw(error.kind(), "in ", what, ", from rank ", comm.RankInExchange(peer), ": ",
            error.what());
    }
  }

  /// own = Kernels::Merge(own, theirs); the header stays own's, but its verdict notes an overflow
  /// if a sum is not finite.
  void MergeInto(SparseBlock* own, const SparseBlock& theirs);

  /// Returns the sum of one block of each rank, added pair by pair in rank order, so that every
  /// rank gets the same bits; overflows are noted as in MergeInto. Overwrites the blocks.
  const SparseBlock& SumInRankOrder(std::vector<SparseBlock>* blocks);

  /// Drops all but the `count` largest entries of a block.
  void KeepTopK(SparseBlock* block, std::int64_t count) const;

  /// Returns the message of a finished block, in `memory` unless the format is plain.
  Outgoing PackedAt(std::uint8_t* memory, const BlockOut& out) const;

  /// Parses a message of `peer` into `theirs`, which was reset to the room that it may take, and
  /// checks it: positions ascend within the bucket, values are finite unless the verdict is not,
  /// and Agree holds. `message` may be the block's own memory.
  void Unpack(const std::uint8_t* message, std::int64_t bytes, SparseBlock* own,
              SparseBlock* theirs, int peer) const;
};

/// Sets the survived bit of every entry.
void MarkSurvived(SparseBlock* block);

/// A way to add up the ranks' gradients, and its guarantees.
struct Collective {
  std::string name;
  /// True if every selected entry is delivered, on every rank.
  bool delivers_all;
  /// True if sums that are not applied wait with the owners of their shards: every selected entry
  /// leaves the rank that selected it, and a rank selects only outside its own shard.
  bool has_owners;
  /// True if a rank sends no more than the entries that are asked for: see Trim.
  bool trims;
  /// True if its blocks can go from device to device: see GpuCollectives.
  bool has_device_rounds;
  /// Replaces this rank's selected block, finished and trimmed, by the sum over all ranks. Its
  /// positions and values are bitwise equal on all ranks; the index of an entry carries the
  /// survived bit if this rank's own value is part of the sum. header().verdict is the worst of
  /// all ranks. Null if all entries are summed (see shard_sum.h).
  void (*run)(SparseBlock* block, CollectiveContext& ctx);
  /// The rule that takes the place of the sum of all entries; null if they are added up.
  const AggregationRule* rule = nullptr;

  /// True if it takes selected blocks.
  bool IsSparse() const { return run != nullptr; }

  /// Cuts a finished selection to the entries that this collective sends when it is asked for k.
  /// Dropped entries return to the residual.
  void Trim(std::int64_t k, Span<float> residual, const Kernels& kernels,
            SparseBlock* selected) const {
    if (trims) selected->Finish(kernels.KeepTopK(k, 0, selected->count(), selected, residual));
  }
};

/// Returns all collectives, or the names of the sparse ones, in the order of the registry.
const std::vector<Collective>& AllCollectives();
std::vector<std::string> CollectiveNames();

/// Returns the collective of that name; throws InvalidArgument, naming those that exist.
const Collective& FindCollective(const std::string& name);

}  // namespace hvd_sparse

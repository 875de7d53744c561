/// A collective turns the blocks that the ranks selected into one block that all of them hold.
///
/// What a new one takes stands in docs/contributing.md. The tests of the laws find it through the
/// registry.

#ifndef HVD_SPARSE_COLLECTIVES_SPARSE_ALLREDUCE_H_
#define HVD_SPARSE_COLLECTIVES_SPARSE_ALLREDUCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/sparse_block.h"
#include "csrc/collectives/dense_sum.h"
#include "csrc/collectives/digest.h"
#include "csrc/comm/communicator.h"
#include "csrc/kernels/kernels.h"
#include "csrc/wire/wire_format.h"

namespace hvd_sparse {

/// Positions of the bucket, and what rounding took from the values there.
using RoundingErrors = std::vector<std::pair<Index, float>>;

/// Scratch of one exchange: grows to what is needed and is used again.
struct CollectiveScratch {
  SparseBlock theirs, merged;
  Buffer messages, records;
  std::vector<SparseBlock> blocks;
  DenseSum dense, their_dense;     // of recursive doubling
  Buffer outgoing, incoming;       // messages of a format that is not plain
  RoundingErrors rounding_errors;  // of entries that are on their way, see Narrow
  std::vector<float> errors;

  // Of split_allgather.
  std::vector<SparseBlock> parts;
  std::vector<Index> regions;  // where each one begins; found anew now and then
  DigestScratch digest;
};

/// A block on its way to a rank, and one expected from a rank, of at most `room` entries.
struct BlockOut {
  int peer;
  const SparseBlock* block;
};
struct BlockIn {
  int peer;
  SparseBlock* block;
  std::int64_t room;
};

/// How a collective does its work; the same on every rank.
struct CollectiveOptions {
  double slack = 1;  ///< gtopk keeps slack * k entries in the rounds before the last; at least 1
};

/// One transfer of a collective: when, and how much of it was this rank's.
struct RoundTimes {
  std::string name;
  double begin = 0, end = 0;  ///< seconds of std::chrono::steady_clock
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
};

/// What a collective works with.
struct CollectiveContext {
  Communicator& comm;
  const Kernels& kernels;
  CollectiveScratch& scratch;
  std::int64_t k;         ///< entries asked for in the bucket, the same on every rank
  std::int64_t capacity;  ///< the most entries that any rank's selected block can hold
  std::string what;       ///< the bucket, for warnings and errors
  std::int64_t numel = kMaxBucketNumel;  ///< entries of the bucket
  CollectiveOptions options = {};
  WireFormat wire = {};  ///< of all messages, the same on every rank

  std::int64_t bytes_sent = 0;  ///< by this rank, headers included; counted by Transfer
  std::int64_t bytes_received = 0;
  std::vector<RoundTimes> rounds = {};  ///< in the order in which they began; noted by Transfer

  /// Communicator::Transfer, counted and timed. For what is no block.
  void Transfer(Span<const Outgoing> out, Span<Incoming> in, const std::string& round);

  /// Sends a finished block; in a format with narrow values, after Narrow. A rank that takes the
  /// block as its own gets it verbatim.
  void Send(const SparseBlock& block, int peer, const std::string& round,
            Cargo cargo = Cargo::kSums);

  /// Receives a block of at most `room` entries, and checks that it belongs here (see Agree).
  void Receive(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
               const std::string& round);

  /// Send and Receive with the same peer at the same time.
  void Swap(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
            const std::string& round);

  /// Sends and receives several blocks at the same time; like Send and Receive.
  void MoveBlocks(SparseBlock* own, Span<const BlockOut> out, Span<const BlockIn> in,
                  const std::string& round);

  /// Every rank's block, in the order of the ranks, each of at most `room` entries; `own` is this
  /// rank's. Bruck's algorithm: ceil(log2 P) rounds, in which a rank sends the blocks of all others
  /// once. Agrees with all. The blocks live in the scratch memory.
  std::vector<SparseBlock>& AllgatherBlocks(SparseBlock* own, std::int64_t room,
                                            const std::string& round);

  /// Rounds the values of a block to the type that travels, in place, just before they do; so this
  /// rank goes on with what its peers receive. Nothing happens where values travel as float32.
  ///
  /// What is lost must stay with exactly one of the ranks that hold this block: on that one,
  /// `keeps_errors` is true, and the errors are noted. Own values are a rank's own affair. Of a sum
  /// that several ranks hold it is the lowest of them, or the one that alone computed it.
  void Narrow(SparseBlock* block, bool keeps_errors);

  /// Forgets the errors of entries that are not in `block` any more, or without the survived bit
  /// where `survived_only`: nobody will receive them, and the ranks put back what they took. To be
  /// called wherever a block drops entries that could return through a peer later.
  void KeepErrorsOf(const SparseBlock& block, bool survived_only = false);

  /// Every rank's record, one behind the other in the order of the ranks. For what is no block: a
  /// few numbers, as many bytes on every rank. The memory is valid until the next call.
  const std::uint8_t* AllgatherRecords(const void* own, std::int64_t bytes,
                                       const std::string& round);

  /// Throws Disagreement unless `theirs`, received from `peer`, belongs to the same bucket and
  /// step as `own`, and to a rank of the same options. Makes the lowest bad rank known to `own`.
  void Agree(BlockHeader* own, const BlockHeader& theirs, int peer) const;
  void Agree(SparseBlock* own, const SparseBlock& theirs, int peer) const {
    Agree(&own->header(), theirs.header(), peer);
  }

  /// Throws Disagreement unless `peer` sends messages of this context's format.
  void AgreeOnFormat(std::uint8_t theirs, int peer) const;

  /// For those who are about to wait for each other's devices, which know no end of waiting: all
  /// ranks compare, by way of the CPU and in 32 bytes of each, what they are about to do. Throws as
  /// Agree does, on all ranks, or where their routes differ. Makes the lowest bad rank known.
  void AgreeBeforehand(BlockHeader* own);

  /// Runs `read`, which looks at a message of `peer`. What it finds wrong is thrown with the names
  /// of that rank and of the bucket.
  template <typename Read>
  void Reading(int peer, Read read) const {
    try {
      read();
    } catch (const Error& error) {
      Throw(error.kind(), "in ", what, ", from rank ", comm.RankInExchange(peer), ": ",
            error.what());
    }
  }

  /// own = Kernels::Merge(own, theirs); the header stays own's, but for kSumOverflows where a sum
  /// is not finite.
  void MergeInto(SparseBlock* own, const SparseBlock& theirs);

  /// The sum of one block of each rank, added pair by pair in the order of the ranks, so that every
  /// rank that does it gets the same bits; with kSumOverflows as in MergeInto. Uses up the blocks.
  const SparseBlock& SumInRankOrder(std::vector<SparseBlock>* blocks);

  /// Drops all but the `count` largest entries of a block.
  void KeepTopK(SparseBlock* block, std::int64_t count) const;

  /// A finished block as it travels; lives until the next one does.
  Outgoing Packed(const SparseBlock& block, Cargo cargo, int peer);

  /// Reads a message of `peer` into `theirs`, which was reset to the room that it may take, and
  /// checks that it belongs here: that its positions ascend within the bucket, that its values are
  /// finite unless a bad rank is known, and Agree. `message` may be the block's own memory.
  void Unpack(const std::uint8_t* message, std::int64_t bytes, SparseBlock* own,
              SparseBlock* theirs, int peer) const;

 private:
  /// Where the next message for `theirs` is to be received.
  Incoming Expect(SparseBlock* theirs, std::int64_t room, int peer);

  /// The same in given memory, which a plain format leaves alone.
  Outgoing PackedAt(std::uint8_t* memory, const SparseBlock& block, Cargo cargo, int peer) const;
  Incoming ExpectAt(std::uint8_t* memory, SparseBlock* theirs, std::int64_t room, int peer) const;
};

/// Sets the survived bit of every entry.
void MarkSurvived(SparseBlock* block);

class SparseAllreduce {
 public:
  virtual ~SparseAllreduce() = default;

  /// Whether everything selected is delivered, on every rank.
  virtual bool DeliversAll() const = 0;

  /// Whether the ranks of a node add up their residuals before they select: a rank then selects
  /// from its shard of the sum, and Run is for the ranks of that shard, one on each node. See
  /// hierarchical.cc.
  virtual bool SumsNodesFirst() const { return false; }

  /// Cuts a finished selection down to what this collective carries when it is asked for k entries.
  /// What it drops goes back to the residual.
  virtual void Trim(std::int64_t /*k*/, Span<float> /*residual*/, const Kernels& /*kernels*/,
                    SparseBlock* /*selected*/) const {}

  /// In: this rank's selected block, finished and trimmed. Out: the sum over all ranks, of bitwise
  /// equal positions and values on all of them; the index of an entry carries the survived bit
  /// where this rank's own value is part of the sum. header().bad_rank is the lowest of any rank.
  virtual void Run(SparseBlock* block, CollectiveContext& ctx) const = 0;
};

/// Names of all collectives, in the order of the registry.
std::vector<std::string> CollectiveNames();

/// The collective of that name; throws InvalidArgument, naming those that exist.
const SparseAllreduce& FindCollective(const std::string& name);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_SPARSE_ALLREDUCE_H_

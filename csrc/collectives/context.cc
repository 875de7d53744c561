/// What all collectives share: counted transfers, merges, and the check that the ranks agree.

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

void CollectiveContext::Transfer(Span<const Outgoing> out, Span<Incoming> in,
                                 const std::string& round) {
  comm.Transfer(out, in, what + ", " + round);
  for (const Outgoing& message : out) bytes_sent += message.bytes;
  for (const Incoming& message : in) bytes_received += message.bytes;
}

void CollectiveContext::Send(const SparseBlock& block, int peer, const std::string& round) {
  const Outgoing out{peer, block.message(), block.message_bytes()};
  Transfer({&out, 1}, {}, round);
}

void CollectiveContext::Receive(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
                                const std::string& round) {
  theirs->Reset(room);
  Incoming in{peer, theirs->message(), theirs->max_message_bytes()};
  Transfer({}, {&in, 1}, round);
  theirs->ParseInPlace(in.bytes);
  Agree(own, *theirs, peer);
}

void CollectiveContext::Swap(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
                             const std::string& round) {
  theirs->Reset(room);
  const Outgoing out{peer, own->message(), own->message_bytes()};
  Incoming in{peer, theirs->message(), theirs->max_message_bytes()};
  Transfer({&out, 1}, {&in, 1}, round);
  theirs->ParseInPlace(in.bytes);
  Agree(own, *theirs, peer);
}

void CollectiveContext::Agree(BlockHeader* own, const BlockHeader& other, int peer) const {
  BlockHeader& mine = *own;
  if (mine.bucket != other.bucket || mine.step != other.step) {
    Throw(ErrorKind::kExchangeFailed, "the ranks disagree: rank ", comm.Rank(),
          " exchanges bucket ", mine.bucket, " of step ", mine.step, " (", what, "), rank ", peer,
          " bucket ", other.bucket, " of step ", other.step);
  }
  if (mine.asked != other.asked) {
    Throw(ErrorKind::kExchangeFailed, "the ranks disagree: in ", what, " rank ", comm.Rank(),
          " was asked for ", mine.asked, " entries, rank ", peer, " for ", other.asked);
  }
  if (mine.kept != other.kept) {
    Throw(ErrorKind::kExchangeFailed, "the ranks disagree: in ", what, " rank ", comm.Rank(),
          " keeps ", mine.kept, " entries in a round, rank ", peer, " keeps ", other.kept,
          ": do all ranks use the same slack?");
  }
  mine.bad_rank = std::min(mine.bad_rank, other.bad_rank);
}

void CollectiveContext::MergeInto(SparseBlock* own, const SparseBlock& theirs) {
  const BlockHeader identity = own->header();
  kernels.Merge(*own, theirs, &scratch.merged);
  const std::int32_t count = scratch.merged.header().count;
  scratch.merged.header() = identity;
  scratch.merged.header().count = count;
  std::swap(*own, scratch.merged);
}

const SparseBlock& CollectiveContext::SumInRankOrder(std::vector<SparseBlock>* blocks) {
  const int size = comm.Size();
  for (int step = 1; step < size; step *= 2) {
    for (int rank = 0; rank + step < size; rank += 2 * step) {
      MergeInto(&(*blocks)[rank], (*blocks)[rank + step]);
    }
  }
  return (*blocks)[0];
}

void CollectiveContext::KeepTopK(SparseBlock* block, std::int64_t count) const {
  block->Finish(kernels.KeepTopK(count, 0, block->count(), block));
}

void MarkSurvived(SparseBlock* block) {
  Index* indices = block->indices();
  for (std::int64_t i = 0; i < block->count(); ++i) indices[i] = Marked(indices[i], true);
}

}  // namespace hvd_sparse

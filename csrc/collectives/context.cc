/// The common base of all collectives: counted and timed transfers, merges, and checks that the
/// ranks agree.

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {

void CollectiveContext::Transfer(Span<const Outgoing> out, Span<Incoming> in,
                                 const std::string& round) {
  Begin(out, in, round);
  Wait();
}

void CollectiveContext::Begin(Span<const Outgoing> out, Span<Incoming> in,
                              const std::string& round) {
  RoundTimes times{round, SteadySeconds()};
  for (const Outgoing& message : out) times.bytes_sent += message.bytes;
  comm.Begin(out, in, what + ", " + round);
  bytes_sent += times.bytes_sent;
  rounds.push_back(std::move(times));
  in_flight.push_back(in);
}

void CollectiveContext::Wait() {
  comm.Wait();
  const std::size_t first = rounds.size() - in_flight.size();
  RoundTimes& times = rounds[first];
  times.end = SteadySeconds();
  if (first > 0) times.begin = std::max(times.begin, rounds[first - 1].end);
  for (const Incoming& message : in_flight.front()) times.bytes_received += message.bytes;
  bytes_received += times.bytes_received;
  in_flight.erase(in_flight.begin());
}

void CollectiveContext::Send(const SparseBlock& block, int peer, const std::string& round,
                             Content content) {
  const BlockOut out{peer, &block, content};
  MoveBlocks(nullptr, {&out, 1}, {}, round);
}

void CollectiveContext::Receive(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
                                const std::string& round) {
  const BlockIn in{peer, theirs, room};
  MoveBlocks(own, {}, {&in, 1}, round);
}

void CollectiveContext::Swap(SparseBlock* own, SparseBlock* theirs, std::int64_t room, int peer,
                             const std::string& round) {
  const BlockOut out{peer, own};
  const BlockIn in{peer, theirs, room};
  MoveBlocks(own, {&out, 1}, {&in, 1}, round);
}

Outgoing CollectiveContext::PackedAt(std::uint8_t* memory, const BlockOut& out) const {
  const SparseBlock& block = *out.block;
  if (wire.IsPlain()) return {out.peer, block.message(), block.message_bytes()};
  return {out.peer, memory, EncodeBlock(block, wire, out.content, memory)};
}

void CollectiveContext::Unpack(const std::uint8_t* message, std::int64_t bytes, SparseBlock* own,
                               SparseBlock* theirs, int peer) const {
  std::uint8_t format = 0;
  Reading(peer, [&] { format = SparseBlock::ReadHeader(message, bytes).format; });
  AgreeOnFormat(format, peer);
  Reading(peer, [&] {
    if (!wire.IsPlain()) {
      DecodeBlock(message, bytes, numel, theirs);
    } else if (message == theirs->message()) {
      theirs->ParseInPlace(bytes);
      CheckPositions(*theirs, numel);
    } else {
      theirs->Parse(message, bytes);
      CheckPositions(*theirs, numel);
    }
    CheckValues(theirs->header(), theirs->values(), theirs->count());
  });
  Agree(own, *theirs, peer);
}

void CollectiveContext::Narrow(SparseBlock* block, bool keeps_errors) {
  if (wire.values == Values::kFloat32 || comm.Size() == 1) return;
  const std::int64_t count = block->count();
  if (!keeps_errors) return RoundValues(wire.values, block->values(), count, nullptr);
  scratch.errors.resize(static_cast<std::size_t>(count));
  RoundValues(wire.values, block->values(), count, scratch.errors.data());
  const Index* indices = block->indices();
  for (std::int64_t i = 0; i < count; ++i) {
    const float error = scratch.errors[static_cast<std::size_t>(i)];
    if (error != 0) scratch.rounding_errors.emplace_back(Position(indices[i]), error);
  }
}

void CollectiveContext::KeepErrorsOf(const SparseBlock& block, bool survived_only) {
  RoundingErrors& errors = scratch.rounding_errors;
  const Index* const indices = block.indices();
  const std::int64_t count = block.count();
  std::int64_t at = 0;
  Index before = 0;
  auto kept = errors.begin();
  for (const RoundingErrors::value_type& error : errors) {
    if (error.first < before) at = 0;  // errors of another call of Narrow begin here
    before = error.first;
    while (at < count && Position(indices[at]) < error.first) ++at;
    if (at == count || Position(indices[at]) != error.first) continue;
    if (survived_only && !Survived(indices[at])) continue;
    *kept++ = error;
  }
  errors.erase(kept, errors.end());
}

void CollectiveContext::MoveBlocks(SparseBlock* own, Span<const BlockOut> out,
                                   Span<const BlockIn> in, const std::string& round) {
  // In a format that is not plain, messages lie back to back in the scratch memory.
  const bool plain = wire.IsPlain();
  std::int64_t sent_bytes = 0, received_bytes = 0;
  for (const BlockOut& one : out) sent_bytes += one.block->message_bytes();
  for (const BlockIn& one : in) received_bytes += SparseBlock::MessageBytes(one.room);
  if (!plain) {
    scratch.outgoing.Reserve(sent_bytes);
    scratch.incoming.Reserve(received_bytes);
  }
  std::uint8_t* to = scratch.outgoing.data();
  std::vector<Outgoing> outgoing;
  for (const BlockOut& one : out) {
    outgoing.push_back(PackedAt(to, one));
    if (!plain) to += one.block->message_bytes();
  }
  std::uint8_t* from = scratch.incoming.data();
  std::vector<Incoming> incoming;
  for (const auto& [peer, block, room] : in) {
    block->Reset(room);
    incoming.push_back({peer, plain ? block->message() : from, block->max_message_bytes()});
    if (!plain) from += SparseBlock::MessageBytes(room);
  }
  Transfer(outgoing, incoming, round);
  for (std::int64_t i = 0; i < in.size; ++i) {
    const Incoming& message = incoming[static_cast<std::size_t>(i)];
    Unpack(static_cast<const std::uint8_t*>(message.data), message.bytes, own, in[i].block,
           in[i].peer);
  }
}

void CollectiveContext::AgreeOnFormat(std::uint8_t theirs, int peer) const {
  if (theirs == wire.Id()) return;
  Throw(ErrorKind::kDisagreement, "the ranks disagree: in ", what, " rank ",
        comm.RankInExchange(comm.Rank()), " sends ", NameOfFormat(wire.Id()), ", rank ",
        comm.RankInExchange(peer), " ", NameOfFormat(theirs));
}

std::vector<std::int64_t> CollectiveContext::AgreeBeforehand(
    BlockHeader* own, const std::vector<std::int64_t>& counts, std::int64_t room,
    const std::string& round) {
  // A record: the header, and the counts in as few bytes as they take.
  using Sent = std::int32_t;
  const BlockHeader sent = *own;
  const std::size_t size = sizeof(sent) + counts.size() * sizeof(Sent);
  std::vector<std::uint8_t> record(size);
  std::memcpy(record.data(), &sent, sizeof(sent));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<Sent>(counts[i]);
    std::memcpy(record.data() + sizeof(sent) + i * sizeof(Sent), &count, sizeof(Sent));
  }
  const std::uint8_t* records =
      AllgatherRecords(record.data(), static_cast<std::int64_t>(size), round);
  std::vector<std::int64_t> of_all;
  for (int rank = 0; rank < comm.Size(); ++rank, records += size) {
    BlockHeader theirs;
    std::memcpy(static_cast<void*>(&theirs), records, sizeof(theirs));
    if (theirs.route != sent.route) {
      Throw(ErrorKind::kDisagreement, "the ranks disagree: ", what, " takes the route '",
            NameOf(sent.route), "' on rank ", comm.RankInExchange(comm.Rank()), ", and '",
            NameOf(theirs.route), "' on rank ", comm.RankInExchange(rank),
            ": where do their gradients lie?");
    }
    AgreeOnFormat(theirs.format, rank);
    Agree(own, theirs, rank);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      Sent count = 0;
      std::memcpy(&count, records + sizeof(theirs) + i * sizeof(Sent), sizeof(count));
      if (count < 0 || count > room) {
        Throw(ErrorKind::kExchangeFailed, "in ", what, ", ", round, ", rank ",
              comm.RankInExchange(rank), " announces ", count, " entries, at most ", room,
              " were agreed on: do all ranks use the same density?");
      }
      of_all.push_back(count);
    }
  }
  return of_all;
}

void CollectiveContext::Agree(BlockHeader* own, const BlockHeader& other, int peer) const {
  BlockHeader& mine = *own;
  const int rank = comm.RankInExchange(comm.Rank()), other_rank = comm.RankInExchange(peer);
  if (mine.bucket != other.bucket || mine.step != other.step) {
    Throw(ErrorKind::kDisagreement, "the ranks disagree: rank ", rank, " exchanges bucket ",
          mine.bucket, " of step ", mine.step, " (", what, "), rank ", other_rank, " bucket ",
          other.bucket, " of step ", other.step);
  }
  if (mine.asked != other.asked) {
    Throw(ErrorKind::kDisagreement, "the ranks disagree: in ", what, " rank ", rank,
          " was asked for ", mine.asked, " entries, rank ", other_rank, " for ", other.asked);
  }
  if (mine.kept != other.kept) {
    Throw(ErrorKind::kDisagreement, "the ranks disagree: in ", what, " rank ", rank, " keeps ",
          mine.kept, " entries in a round, rank ", other_rank, " keeps ", other.kept,
          ": do all ranks use the same options?");
  }
  mine.verdict.Note(other.verdict);
}

void CollectiveContext::MergeInto(SparseBlock* own, const SparseBlock& theirs) {
  const BlockHeader identity = own->header();
  kernels.Merge(*own, theirs, &scratch.merged);
  const std::int32_t count = scratch.merged.header().count;
  scratch.merged.header() = identity;
  scratch.merged.header().count = count;
  if (!AreFinite(scratch.merged.values(), count)) {
    scratch.merged.header().verdict.Note(Verdict::Overflow());
  }
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

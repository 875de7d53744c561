/// Allgather: every rank gets every block and sums them all.
///
/// Rounds: ceil(log2 P), as in Bruck's algorithm, which serves blocks of different lengths here,
/// and records of equal length. Sent by each rank: 8 k (P - 1) bytes (+ headers), where k is the
/// mean count; counts may differ between ranks. Exact: everything selected is delivered. Best for
/// few ranks (P <= 4) or a tiny k; the result holds up to k P entries.
///
/// Selection by top-k with this collective is TopK-SGD (Lin et al., "Deep Gradient Compression",
/// ICLR 2018, https://arxiv.org/abs/1712.01887). Bruck et al., "Efficient algorithms for all-to-all
/// communications in multiport message-passing systems", IEEE TPDS 1997.

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {
namespace {

/// The messages of several blocks, back to back.
class MessageQueue {
 public:
  MessageQueue(Buffer* buffer, std::int64_t capacity) : buffer_(buffer) {
    buffer_->Reserve(capacity);
  }

  void Append(const Outgoing& message) {
    std::memcpy(buffer_->data() + bytes_, message.data, static_cast<std::size_t>(message.bytes));
    Arrived(message.bytes);
  }

  /// Appends the `bytes` bytes that were received at end(): whole messages.
  void Arrived(std::int64_t bytes) {
    for (const std::int64_t stop = bytes_ + bytes; bytes_ < stop;) {
      starts_.push_back(bytes_);
      bytes_ += MessageLength(buffer_->data() + bytes_, stop - bytes_);
    }
  }

  std::uint8_t* end() const { return buffer_->data() + bytes_; }
  const std::uint8_t* begin() const { return buffer_->data(); }
  std::size_t size() const { return starts_.size(); }
  std::int64_t Start(std::size_t i) const { return i < size() ? starts_[i] : bytes_; }

 private:
  Buffer* buffer_;
  std::int64_t bytes_ = 0;
  std::vector<std::int64_t> starts_;
};

}  // namespace

std::vector<SparseBlock>& CollectiveContext::AllgatherBlocks(SparseBlock* own, std::int64_t room,
                                                             const std::string& round) {
  const BruckRing ring{comm.Rank(), comm.Size()};
  const std::int64_t message_capacity = SparseBlock::MessageBytes(room);
  MessageQueue messages(&scratch.messages, message_capacity * ring.size);
  // A single rank sends nothing, and has rounded nothing.
  const Content content = ring.size > 1 ? Content::kSums : Content::kVerbatim;
  if (!wire.IsPlain()) scratch.outgoing.Reserve(own->message_bytes());
  messages.Append(PackedAt(scratch.outgoing.data(), {ring.rank, own, content}));

  int rounds = 0;
  for (int distance = 1; distance < ring.size; distance *= 2) {
    const int blocks = ring.BlocksInRound(distance);
    const Outgoing out{ring.To(distance), messages.begin(), messages.Start(blocks)};
    Incoming in{ring.From(distance), messages.end(), blocks * message_capacity};
    Transfer({&out, 1}, {&in, 1}, Concat(round, " ", ++rounds));
    Reading(in.peer, [&] {
      const std::size_t before = messages.size();
      messages.Arrived(in.bytes);
      if (messages.size() == before + static_cast<std::size_t>(blocks)) return;
      Throw(ErrorKind::kExchangeFailed, "received ", messages.size() - before,
            " blocks instead of ", blocks, " in ", round, " ", rounds);
    });
  }

  std::vector<SparseBlock>& blocks = scratch.blocks;
  if (blocks.size() < static_cast<std::size_t>(ring.size)) blocks.resize(ring.size);
  for (int position = 0; position < ring.size; ++position) {
    const int owner = ring.OwnerOf(position);
    blocks[owner].Reset(room);
    const std::int64_t start = messages.Start(position);
    Unpack(messages.begin() + start, messages.Start(position + 1) - start, own, &blocks[owner],
           owner);
  }
  return blocks;
}

const std::uint8_t* CollectiveContext::AllgatherRecords(const void* own, std::int64_t bytes,
                                                        const std::string& round) {
  const BruckRing ring{comm.Rank(), comm.Size()};
  scratch.records.Reserve(bytes * ring.size);
  std::uint8_t* const records = scratch.records.data();
  std::memcpy(records, own, static_cast<std::size_t>(bytes));
  int rounds = 0;
  std::int64_t filled = bytes;
  for (int distance = 1; distance < ring.size; distance *= 2) {
    const std::int64_t length = ring.BlocksInRound(distance) * bytes;
    const Outgoing out{ring.To(distance), records, length};
    Incoming in{ring.From(distance), records + filled, length};
    Transfer({&out, 1}, {&in, 1}, Concat(round, " ", ++rounds));
    if (in.bytes != length) {
      Throw(ErrorKind::kDisagreement, "the ranks disagree: in ", what, ", ", round, " ", rounds,
            ", rank ", comm.RankInExchange(in.peer), " sent ", in.bytes, " bytes instead of ",
            length);
    }
    filled += length;
  }
  std::rotate(records, records + (ring.size - ring.rank) % ring.size * bytes, records + filled);
  return records;
}

void RunAllgather(SparseBlock* block, CollectiveContext& ctx) {
  ctx.Narrow(block, true);
  std::vector<SparseBlock>& blocks = ctx.AllgatherBlocks(block, ctx.capacity, "allgather, round");
  const Verdict verdict = block->header().verdict;
  block->CopyFrom(ctx.SumInRankOrder(&blocks));
  block->header().verdict.Note(verdict);
  MarkSurvived(block);
}

}  // namespace hvd_sparse

/// Allgather: every rank gets every block and sums them all.
///
/// Rounds: ceil(log2 P) (Bruck). Sent by each rank: 8 k (P - 1) bytes (+ headers), where k is the
/// mean count; counts may differ between ranks.
/// Exact: everything selected is delivered. Best for few ranks (P <= 4) or a tiny k; the result
/// holds up to k P entries.
///
/// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
/// systems", IEEE TPDS 1997. Selection by top-k with this collective is TopK-SGD (Lin et al., "Deep
/// Gradient Compression", ICLR 2018, https://arxiv.org/abs/1712.01887).

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse {
namespace {

/// The messages of several blocks, one behind the other.
class MessageQueue {
 public:
  MessageQueue(Buffer* buffer, std::int64_t capacity) : buffer_(buffer) {
    buffer_->Reserve(capacity);
  }

  void Append(const SparseBlock& block) {
    std::memcpy(buffer_->data() + bytes_, block.message(),
                static_cast<std::size_t>(block.message_bytes()));
    Arrived(block.message_bytes());
  }

  /// Takes over `bytes` bytes that were received at end(): whole messages.
  void Arrived(std::int64_t bytes) {
    for (const std::int64_t stop = bytes_ + bytes; bytes_ < stop;) {
      BlockHeader header;
      if (stop - bytes_ < SparseBlock::MessageBytes(0)) Refuse();
      std::memcpy(&header, buffer_->data() + bytes_, sizeof(header));
      const std::int64_t length = SparseBlock::MessageBytes(header.count);
      if (header.count < 0 || length > stop - bytes_) Refuse();
      starts_.push_back(bytes_);
      bytes_ += length;
    }
  }

  std::uint8_t* end() const { return buffer_->data() + bytes_; }
  const std::uint8_t* begin() const { return buffer_->data(); }
  std::size_t size() const { return starts_.size(); }
  std::int64_t Start(std::size_t i) const { return i < size() ? starts_[i] : bytes_; }

 private:
  [[noreturn]] static void Refuse() {
    Throw(ErrorKind::kExchangeFailed, "a message of allgather is corrupt");
  }

  Buffer* buffer_;
  std::int64_t bytes_ = 0;
  std::vector<std::int64_t> starts_;
};

/// Sums blocks[0..size) into blocks[0], pair by pair: the order is that of the ranks, so that all
/// of them get the same bits.
void SumInRankOrder(std::vector<SparseBlock>* blocks, int size, CollectiveContext& ctx) {
  for (int step = 1; step < size; step *= 2) {
    for (int i = 0; i + step < size; i += 2 * step) {
      ctx.MergeInto(&(*blocks)[i], (*blocks)[i + step]);
    }
  }
}

}  // namespace

void Allgather::Run(SparseBlock* block, CollectiveContext& ctx) const {
  const BruckRing ring{ctx.comm.Rank(), ctx.comm.Size()};
  const std::int64_t message_capacity = SparseBlock::MessageBytes(ctx.capacity);

  MessageQueue messages(&ctx.scratch.messages, message_capacity * ring.size);
  messages.Append(*block);

  int round = 0;
  for (int distance = 1; distance < ring.size; distance *= 2) {
    const int blocks = ring.BlocksInRound(distance);
    const Outgoing out{ring.To(distance), messages.begin(), messages.Start(blocks)};
    Incoming in{ring.From(distance), messages.end(), blocks * message_capacity};
    ctx.Transfer({&out, 1}, {&in, 1}, Concat("allgather, round ", ++round));
    messages.Arrived(in.bytes);
  }
  if (messages.size() != static_cast<std::size_t>(ring.size)) {
    Throw(ErrorKind::kExchangeFailed, ctx.what, ": allgather received ", messages.size(),
          " blocks of ", ring.size, " ranks");
  }

  std::vector<SparseBlock>& blocks = ctx.scratch.blocks;
  if (blocks.size() < static_cast<std::size_t>(ring.size)) blocks.resize(ring.size);
  for (int position = 0; position < ring.size; ++position) {
    const int owner = ring.OwnerOf(position);
    blocks[owner].Reset(ctx.capacity);
    blocks[owner].Parse(messages.begin() + messages.Start(position),
                        messages.Start(position + 1) - messages.Start(position));
    ctx.Agree(block, blocks[owner], owner);
  }
  const std::int32_t bad_rank = block->header().bad_rank;
  SumInRankOrder(&blocks, ring.size, ctx);
  block->CopyFrom(blocks[0]);
  block->header().bad_rank = bad_rank;
  MarkSurvived(block);
}

}  // namespace hvd_sparse

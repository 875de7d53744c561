#include "csrc/exchange/node_sum.h"

#include <algorithm>
#include <vector>

#include "csrc/base/error.h"

namespace hvd_sparse {

bool NodeSum::Add(Span<const float> residual, BlockHeader* identity, CollectiveContext& ctx) {
  const int own = place_.local_rank, size = place_.local_size;
  const auto copy = [&](Range range, DenseBlock* to) {
    to->Reset(range.size());
    std::copy_n(residual.data + range.begin, range.size(), to->view().data);
  };
  const BlockHeader sent = *identity;
  copy(shard(), &sum_);
  bool finite = true;  // a sum that is not finite stays so
  for (int distance = 1; distance < size; ++distance) {
    const int to = (own + distance) % size, from = (own + size - distance) % size;
    copy(ShardOf(numel_, to, size), &outgoing_);
    outgoing_.Identify(sent);
    incoming_.Reset(shard().size());
    const Outgoing out{to, outgoing_.message(), outgoing_.message_bytes()};
    Incoming in{from, incoming_.message(), incoming_.message_bytes()};
    ctx.Transfer({&out, 1}, {&in, 1}, Concat("on the node, shards, round ", distance));
    ctx.Reading(from, [&] { incoming_.ParseInPlace(in.bytes); });
    ctx.AgreeOnFormat(incoming_.header().format, from);
    finite = sum_.Add(incoming_);
    if (!finite) ctx.Reading(from, [&] { incoming_.CheckValues(); });
    ctx.Agree(identity, incoming_.header(), from);
  }
  if (!finite) identity->verdict.Note(Verdict::Overflow());
  return finite;
}

void NodeSum::Gather(std::int64_t room, SparseBlock* block, CollectiveContext& ctx) const {
  const int size = place_.local_size;
  std::vector<SparseBlock>& parts = ctx.AllgatherBlocks(block, room, "on the node, gather, round");
  std::int64_t total = 0;
  for (int rank = 0; rank < size; ++rank) total += parts[static_cast<std::size_t>(rank)].count();
  const BlockHeader identity = block->header();
  block->Reset(total);
  std::int64_t filled = 0;
  for (int rank = 0; rank < size; ++rank) {
    const SparseBlock& part = parts[static_cast<std::size_t>(rank)];
    const Range range = ShardOf(numel_, rank, size);
    for (std::int64_t i = 0; i < part.count(); ++i, ++filled) {
      const Index position = Position(part.indices()[i]);
      if (position >= range.size()) {
        Throw(ErrorKind::kExchangeFailed, "rank ", ctx.comm.RankInExchange(rank),
              " sent an entry at position ", position, " of a shard with ", range.size(),
              " entries in ", ctx.what);
      }
      block->indices()[filled] = static_cast<Index>(range.begin + position);
      block->values()[filled] = part.values()[i];
    }
  }
  block->header() = identity;
  block->Finish(total);
}

void NodeSum::Commit(Span<float> residual) {
  const Range own = shard();
  std::fill(residual.begin(), residual.begin() + own.begin, 0.0f);
  std::copy(values().begin(), values().end(), residual.begin() + own.begin);
  std::fill(residual.begin() + own.end, residual.end(), 0.0f);
}

}  // namespace hvd_sparse

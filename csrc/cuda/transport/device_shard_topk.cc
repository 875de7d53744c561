#include "csrc/cuda/transport/device_shard_topk.h"

#include <algorithm>
#include <utility>

#include "csrc/collectives/collectives.h"
#include "csrc/collectives/topology.h"

namespace hvd_sparse::cuda {
namespace {

/// The number of entries that each rank sends to each.
class Counts {
 public:
  Counts(std::vector<std::int64_t> by_sender, int size)
      : counts_(std::move(by_sender)), size_(size) {}

  std::int64_t Of(int sender, int receiver) const {
    return counts_[static_cast<std::size_t>(sender) * static_cast<std::size_t>(size_) +
                   static_cast<std::size_t>(receiver)];
  }
  std::int64_t Sent(int rank) const {
    std::int64_t sent = 0;
    for (int other = 0; other < size_; ++other) sent += Of(rank, other);
    return sent;
  }
  std::int64_t Received(int rank) const {
    std::int64_t received = 0;
    for (int other = 0; other < size_; ++other) received += Of(other, rank);
    return received;
  }

  /// Returns the most that a rank sends and receives together.
  std::int64_t Most() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < size_; ++rank) most = std::max(most, Sent(rank) + Received(rank));
    return most;
  }

 private:
  const std::vector<std::int64_t> counts_;
  const int size_;
};

}  // namespace

/// Sends the entries to[r] of a block to every rank r, and returns what came from each, in scratch
/// memory.
std::vector<SparseBlock>& DeviceShardTopK::Swap(SparseBlock* block, const std::vector<Range>& to,
                                                const std::vector<std::int64_t>& by_sender,
                                                const std::string& name, Work* work,
                                                CollectiveContext* ctx) {
  const int rank = ctx->comm.Rank(), size = ctx->comm.Size();
  const auto at = [](int number) { return static_cast<std::size_t>(number); };
  const Counts counts(by_sender, size);
  const std::int64_t sent = kEntryBytes * counts.Sent(rank);
  const std::int64_t received = kEntryBytes * counts.Received(rank);
  // On the device and in pinned memory: what is sent, then what is received.
  char *memory = nullptr, *up = nullptr;
  const auto dividing = [most = kEntryBytes * counts.Most()](char** piece) {
    return [most, piece](Divider* divider) { *piece = divider->Take<char>(most); };
  };
  room_.Divide(&block->header(), ctx, dividing(&memory), dividing(&up));
  char* const down = up + sent;

  DeviceRound round(name, work, &gpu_transport_, &counted_, ctx);
  std::vector<DeviceOut> out;
  std::vector<DeviceIn> in;
  char *part = up, *end = up, *into = memory + sent;
  const char* own = up;
  for (int other = 0; other < size; ++other) {
    const Range range = to[at(other)];
    const Range before = other == 0 ? Range{-1, -1} : to[at(other - 1)];
    if (range.begin != before.begin || range.end != before.end) {  // else it is sent to both
      part = end;
      end = PutEntries(*block, range, part);
    }
    if (other == rank) own = part;
    out.push_back({other, memory + (part - up), kEntryBytes * counts.Of(rank, other)});
    in.push_back({other, into, kEntryBytes * counts.Of(other, rank)});
    into += in.back().bytes;
  }
  work->Upload(up, end - up, memory);
  round.MoveAmongAll(out, in);
  work->Fetch(memory + sent, received, down);
  round.End();

  std::vector<SparseBlock>& arrived = ctx->scratch.blocks;
  arrived.resize(std::max(arrived.size(), at(size)));
  const char* message = down;
  for (int other = 0; other < size; ++other) {
    TakeEntries(other == rank ? own : message, counts.Of(other, rank), block->header(), other, *ctx,
                &arrived[at(other)]);
    message += in[at(other)].bytes;
  }
  return arrived;
}

void DeviceShardTopK::Run(SparseBlock* block, CollectiveContext& ctx) {
  Work work(device_);
  const int size = ctx.comm.Size();
  const std::int64_t room = LongestShard(ctx.numel, size);
  std::vector<Range> parts;
  std::vector<std::int64_t> counts;
  for (int owner = 0; owner < size; ++owner) {
    parts.push_back(block->EntriesIn(ShardOf(ctx.numel, owner, size)));
    counts.push_back(parts.back().size());
  }
  const auto by_sender = ctx.AgreeBeforehand(&block->header(), counts, room, "shard_topk, headers");
  ctx.take_sums(&Swap(block, parts, by_sender, "shard_topk, to the owners", &work, &ctx), block);

  const auto taken =
      ctx.AgreeBeforehand(&block->header(), {block->count()}, room, "shard_topk, headers of sums");
  std::vector<std::int64_t> to_all;
  for (const std::int64_t count : taken) to_all.insert(to_all.end(), taken.size(), count);
  const std::vector<Range> whole(taken.size(), {0, block->count()});
  JoinShards(Swap(block, whole, to_all, "shard_topk, gather", &work, &ctx), block, ctx);
  MarkSurvived(block);
}

}  // namespace hvd_sparse::cuda

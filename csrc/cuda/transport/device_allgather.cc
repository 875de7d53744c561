#include "csrc/cuda/transport/device_allgather.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {
namespace {

/// The sum of one block of each rank on the device: its memory, and its merges.
///
/// The blocks lie back to back, in rank order, as they are sent. Sums lie where the blocks begin
/// that they are of, in either of two more such memories: merges read from one and write to the
/// other. A block without a partner is merged with an empty one, so that it moves along.
class SumOnDevice {
 public:
  explicit SumOnDevice(const std::vector<std::int64_t>& counts)
      : size_(static_cast<int>(counts.size())), begins_(counts.size() + 1) {
    std::partial_sum(counts.begin(), counts.end(), begins_.begin() + 1);
  }

  std::int64_t entries() const { return begins_.back(); }
  std::int64_t Count(int rank) const { return begins_[At(rank) + 1] - begins_[At(rank)]; }
  std::int64_t MostOfARank() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < size_; ++rank) most = std::max(most, Count(rank));
    return most;
  }

  /// All ranks' entries, and those of one.
  char* received() const { return memories_[0]; }
  char* Received(int rank) const { return memories_[0] + kEntryBytes * begins_[At(rank)]; }

  /// Divides the memory that must be zero before the merges, behind that which need not.
  void Divide(Divider* divider) {
    for (char*& memory : memories_) memory = divider->Take<char>(kEntryBytes * entries());
    headers_ = divider->Take<DeviceBlockHeader>(size_ + 1);  // the last one is the empty block's
    merges_.clear();
    std::vector<DeviceBlock> blocks;
    for (int rank = 0; rank < size_; ++rank) {
      blocks.push_back(BlockAt(memories_[0], rank, Count(rank), HeaderAt(rank)));
    }
    char **from = &memories_[1], **to = &memories_[2];
    for (int step = 1; step < size_; step *= 2, std::swap(from, to)) {
      for (int rank = 0; rank < size_; rank += 2 * step) {
        const DeviceBlock own = blocks[At(rank)];
        DeviceBlock theirs{HeaderAt(size_), nullptr, nullptr, 0};
        if (rank + step < size_) theirs = blocks[At(rank + step)];
        const std::int64_t both = own.capacity + theirs.capacity;
        if (both == 0) continue;
        blocks[At(rank)] = BlockAt(*to, rank, both, divider->Take<DeviceBlockHeader>(1));
        merges_.push_back({own, theirs, blocks[At(rank)], {}});
      }
    }
    sum_ = blocks[0];
    zeros_ = divider->Take<char>(0);
    const std::size_t before = divider->used();
    for (Merge& one : merges_) one.scratch = MergeScratch::From(divider, one.out.capacity);
    zero_bytes_ = static_cast<std::int64_t>(divider->used() - before);
  }

  /// Returns the headers that precede the merges: `own` with the counts, and without entries.
  std::vector<DeviceBlockHeader> Headers(DeviceBlockHeader own) const {
    std::vector<DeviceBlockHeader> headers(At(size_) + 1, own);
    for (int rank = 0; rank < size_; ++rank) {
      headers[At(rank)].count = static_cast<std::uint32_t>(Count(rank));
    }
    return headers;
  }
  DeviceBlockHeader* headers() const { return headers_; }

  /// Enqueues the merges of all blocks; returns the sum, whose entries lie like a message's, in the
  /// room of all.
  DeviceBlock Enqueue(cudaStream_t stream) const {
    Clear(zeros_, zero_bytes_, stream);
    for (const Merge& one : merges_) {
      LaunchMerge(one.own, one.theirs, one.out, one.scratch, nullptr, stream);
    }
    return sum_;
  }

 private:
  struct Merge {
    DeviceBlock own, theirs, out;
    MergeScratch scratch;
  };

  static std::size_t At(int rank) { return static_cast<std::size_t>(rank); }

  /// Null as long as there is no memory.
  DeviceBlockHeader* HeaderAt(int i) const { return headers_ == nullptr ? nullptr : headers_ + i; }

  /// Returns a block of `count` entries that begins where those of `rank` do.
  DeviceBlock BlockAt(char* memory, int rank, std::int64_t count, DeviceBlockHeader* header) const {
    if (memory == nullptr) return {header, nullptr, nullptr, count};
    auto* const indices = reinterpret_cast<Index*>(memory + kEntryBytes * begins_[At(rank)]);
    return {header, indices, reinterpret_cast<float*>(indices + count), count};
  }

  const int size_;
  std::vector<std::int64_t> begins_;
  char* memories_[3] = {};
  DeviceBlockHeader* headers_ = nullptr;
  std::vector<Merge> merges_;
  DeviceBlock sum_;
  char* zeros_ = nullptr;
  std::int64_t zero_bytes_ = 0;
};

}  // namespace

void DeviceAllgather::Run(SparseBlock* block, CollectiveContext& ctx) {
  const int rank = ctx.comm.Rank(), size = ctx.comm.Size();
  Work work(device_);
  BlockHeader& header = block->header();
  SumOnDevice sum(
      ctx.AgreeBeforehand(&header, {block->count()}, ctx.capacity, "allgather, headers"));
  if (sum.entries() == 0) return;

  // The result takes as much room as there can be entries: only the device will know how many.
  DeviceBlockHeader *made = nullptr, *staged = nullptr;
  char *entries = nullptr, *own = nullptr;
  const auto divide_pinned = [&](Divider* divider) {
    made = divider->Take<DeviceBlockHeader>(1);
    staged = divider->Take<DeviceBlockHeader>(size + 1);
    entries = divider->Take<char>(kEntryBytes * sum.entries());
    own = divider->Take<char>(kEntryBytes * sum.MostOfARank());
  };
  room_.Divide(&header, &ctx, [&](Divider* divider) { sum.Divide(divider); }, divide_pinned);

  DeviceRound round("allgather", &work, &gpu_transport_, &counted_, &ctx);
  PutEntries(*block, {0, block->count()}, own);
  work.Upload(own, kEntryBytes * block->count(), sum.Received(rank));
  const std::vector<DeviceBlockHeader> headers = sum.Headers(IdentityOf(header));
  std::copy(headers.begin(), headers.end(), staged);
  work.Upload(staged, size + 1, sum.headers());

  std::vector<DeviceOut> out;
  std::vector<DeviceIn> in;
  for (int peer = 0; peer < size; ++peer) {
    out.push_back({peer, sum.Received(rank), kEntryBytes * sum.Count(rank)});
    in.push_back({peer, sum.Received(peer), kEntryBytes * sum.Count(peer)});
  }
  round.MoveAmongAll(out, in);
  const DeviceBlock result = sum.Enqueue(round.stream());
  work.Fetch(result.header, 1, made);
  work.Fetch(reinterpret_cast<const char*>(result.indices), kEntryBytes * sum.entries(), entries);
  round.End();

  // Either a sum overflows, or a message is corrupt: then it is told from whom it is.
  if (made->flags != 0) {
    auto* const received = work.Staged<char>(kEntryBytes * sum.entries());
    work.Fetch(sum.received(), kEntryBytes * sum.entries(), received);
    work.Finish();
    for (int peer = 0; peer < size; ++peer) {
      TakeEntries(received + (sum.Received(peer) - sum.received()), sum.Count(peer), header, peer,
                  ctx, &ctx.scratch.theirs);
    }
    header.verdict.Note(Verdict::Overflow());
  }
  const auto* const indices = reinterpret_cast<const Index*>(entries);
  ReplaceBySum(indices, reinterpret_cast<const float*>(indices + sum.entries()),
               std::min<std::int64_t>(made->count, sum.entries()), round.what(), ctx, block);
  MarkSurvived(block);
}

}  // namespace hvd_sparse::cuda

#include "csrc/cuda/transport/device_round.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/process.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse::cuda {

void MessageRoom::Fit(std::size_t on_device, std::size_t pinned, BlockHeader* header,
                      CollectiveContext* ctx) {
  const bool fits = memory_ != nullptr && memory_->size() >= on_device && staging_ != nullptr &&
                    staging_->size() >= pinned;
  if (fits) return;
  memory_.reset();
  staging_.reset();
  memory_ = std::make_unique<MessageBytes>(transport_, on_device + on_device / 2);
  staging_ = std::make_unique<PinnedBytes>(pinned + pinned / 2);
  ctx->AgreeBeforehand(header, {}, 0, "memory for messages");
}

DeviceRound::DeviceRound(const std::string& name, Work* work, GpuTransport* transport,
                         CountedTransport* counted, CollectiveContext* ctx)
    : ctx_(*ctx),
      gpu_transport_(*transport),
      counted_(*counted),
      times_{Concat(name, ", over ", transport->Name()), SteadySeconds()},
      what_(Concat(ctx->what, ", ", times_.name)),
      work_(*work) {
  gpu_transport_.Begin(what_);
  counted_.Reset();
}

/// Rank r begins with rank r + 1, so that not all ranks send to the same one first.
void DeviceRound::MoveAmongAll(const std::vector<DeviceOut>& out, const std::vector<DeviceIn>& in) {
  const int rank = counted_.Rank(), size = counted_.Size();
  for (int first = 1; first < size; first += kMessagesAtOnce) {
    std::vector<DeviceOut> sent;
    std::vector<DeviceIn> received;
    for (int distance = first; distance < std::min(size, first + kMessagesAtOnce); ++distance) {
      const DeviceOut& to = out[static_cast<std::size_t>((rank + distance) % size)];
      const DeviceIn& from = in[static_cast<std::size_t>((rank + size - distance) % size)];
      if (to.bytes > 0) sent.push_back(to);
      if (from.bytes > 0) received.push_back(from);
    }
    if (!sent.empty() || !received.empty()) counted_.Move(sent, received, stream());
  }
}

void DeviceRound::End() {
  gpu_transport_.Await(stream(), what_);
  work_.NoteDone();
  times_.end = SteadySeconds();
  times_.bytes_sent = counted_.sent();
  times_.bytes_received = counted_.received();
  ctx_.bytes_sent += times_.bytes_sent;
  ctx_.bytes_received += times_.bytes_received;
  ctx_.rounds.push_back(std::move(times_));
}

DeviceBlockHeader IdentityOf(const BlockHeader& header) {
  DeviceBlockHeader identity;
  identity.bucket = header.bucket;
  identity.step = header.step;
  identity.asked = header.asked;
  return identity;
}

char* PutEntries(const SparseBlock& block, Range range, char* message) {
  const auto count = static_cast<std::size_t>(range.size());
  std::memcpy(message, block.indices() + range.begin, count * sizeof(Index));
  message += count * sizeof(Index);
  std::memcpy(message, block.values() + range.begin, count * sizeof(float));
  return message + count * sizeof(float);
}

void TakeEntries(const char* message, std::int64_t count, const BlockHeader& header, int peer,
                 const CollectiveContext& ctx, SparseBlock* block) {
  block->Reset(count);
  std::copy_n(message, count * std::int64_t{sizeof(Index)},
              reinterpret_cast<char*>(block->indices()));
  std::copy_n(message + count * std::int64_t{sizeof(Index)}, count * std::int64_t{sizeof(float)},
              reinterpret_cast<char*>(block->values()));
  block->header() = header;
  block->Finish(count);
  ctx.Reading(peer, [&] {
    CheckPositions(*block, ctx.numel);
    CheckValues(block->header(), block->values(), count);
  });
}

void ReplaceBySum(const Index* indices, const float* values, std::int64_t count,
                  const std::string& what, const CollectiveContext& ctx, SparseBlock* block) {
  const BlockHeader identity = block->header();
  block->Reset(count);
  std::copy_n(indices, count, block->indices());
  std::copy_n(values, count, block->values());
  block->header() = identity;
  block->Finish(count);
  try {
    CheckPositions(*block, ctx.numel);
  } catch (const Error& error) {
    Throw(error.kind(), "in ", what, ": ", error.what());
  }
}

}  // namespace hvd_sparse::cuda

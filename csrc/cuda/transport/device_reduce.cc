#include "csrc/cuda/transport/device_reduce.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"
#include "csrc/cuda/base/work.h"

namespace hvd_sparse::cuda {

void TransportGTopK::Fit(std::int64_t numel, std::int64_t k, const CollectiveOptions& options) {
  if (rounds_ != nullptr && numel == numel_ && k == k_ && options == options_) return;
  const OnDevice current(device_);
  rounds_.reset();
  rounds_ = std::make_unique<DeviceGTopK>(numel, k, options, &counted_);
  rounds_->ClearBlocks(OwnStream(device_).get());
  numel_ = numel;
  k_ = k;
  options_ = options;
}

void TransportGTopK::Run(SparseBlock* block, CollectiveContext& ctx) {
  // Fit allocates, which may wait for the device. So it precedes the comparison of the ranks, when
  // no other device waits for this one yet.
  Fit(ctx.numel, std::max<std::int64_t>(ctx.k, 1), ctx.options);
  BlockHeader& header = block->header();
  header.kept = static_cast<std::uint32_t>(KeptBeforeTheLast(ctx.k, ctx.numel, ctx.options));
  ctx.AgreeBeforehand(&header, {}, 0, "gtopk, headers");
  const std::int64_t count = block->count();
  Require(count <= k_, ctx.what, " takes at most ", k_, " entries, got ", count);

  DeviceRound round("gtopk", device_, &gpu_transport_, &counted_, &ctx);
  Work& work = round.work();
  const DeviceBlock& own = rounds_->selected();
  // The result takes as much room as there can be entries: only the device will know how many.
  auto* const made = work.Staged<DeviceBlockHeader>(1);
  auto* const made_indices = work.Staged<Index>(k_);
  auto* const made_values = work.Staged<float>(k_);
  auto* const sent = work.Staged<DeviceBlockHeader>(1);
  *sent = {};
  sent->count = static_cast<std::uint32_t>(count);
  sent->verdict = header.verdict;
  sent->bucket = header.bucket;
  sent->step = header.step;
  sent->asked = header.asked;
  auto* const indices = work.Staged<Index>(count);
  for (std::int64_t i = 0; i < count; ++i) indices[i] = Marked(block->indices()[i], true);
  auto* const values = work.Staged<float>(count);
  std::copy_n(block->values(), count, values);
  work.Upload(sent, 1, own.header);
  work.Upload(indices, count, own.indices);
  work.Upload(values, count, own.values);
  rounds_->Run(round.stream());
  const DeviceBlock& result = rounds_->reduced();
  work.Fetch(result.header, 1, made);
  work.Fetch(result.indices, k_, made_indices);
  work.Fetch(result.values, k_, made_values);
  round.End();

  if ((made->flags & (kDisagree | kMalformed)) != 0) {
    Throw(ErrorKind::kExchangeFailed, "in ", round.what(),
          " a block of another bucket or step, or none, has come");
  }
  header.verdict.Note(made->verdict);
  if ((made->flags & kSumNotFinite) != 0) header.verdict.Note(Verdict::Overflow());
  ReplaceBySum(made_indices, made_values, std::min<std::int64_t>(made->count, k_), round.what(),
               ctx, block);
}

}  // namespace hvd_sparse::cuda

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
  const auto divide = [&](Divider* divider) {
    for (Staged* const one : {&sent_, &made_}) {
      *one = {divider->Take<DeviceBlockHeader>(1), divider->Take<Index>(k),
              divider->Take<float>(k)};
    }
  };
  staging_ = std::make_unique<PinnedBytes>(divide);
  rounds_ = std::make_unique<DeviceGTopK>(numel, k, options, &counted_);
  rounds_->ClearBlocks(OwnStream(device_).get());
  numel_ = numel;
  k_ = k;
  options_ = options;
}

void TransportGTopK::Run(SparseBlock* block, CollectiveContext& ctx) {
  // These allocate, which may wait for the device (see MessageRoom). So they precede the comparison
  // of the ranks.
  Work work(device_);
  Fit(ctx.numel, std::max<std::int64_t>(ctx.k, 1), ctx.options);
  BlockHeader& header = block->header();
  header.kept = static_cast<std::uint32_t>(KeptBeforeTheLast(ctx.k, ctx.numel, ctx.options));
  ctx.AgreeBeforehand(&header, {}, 0, "gtopk, headers");
  const std::int64_t count = block->count();
  Require(count <= k_, ctx.what, " takes at most ", k_, " entries, got ", count);

  DeviceRound round("gtopk", &work, &gpu_transport_, &counted_, &ctx);
  const DeviceBlock& own = rounds_->selected();
  *sent_.header = IdentityOf(header);
  sent_.header->count = static_cast<std::uint32_t>(count);
  sent_.header->verdict = header.verdict;
  for (std::int64_t i = 0; i < count; ++i) sent_.indices[i] = Marked(block->indices()[i], true);
  std::copy_n(block->values(), count, sent_.values);
  work.Upload(sent_.header, 1, own.header);
  work.Upload(sent_.indices, count, own.indices);
  work.Upload(sent_.values, count, own.values);
  rounds_->Run(round.stream());
  const DeviceBlock& result = rounds_->reduced();
  work.Fetch(result.header, 1, made_.header);
  work.Fetch(result.indices, k_, made_.indices);
  work.Fetch(result.values, k_, made_.values);
  round.End();

  const DeviceBlockHeader& made = *made_.header;
  if ((made.flags & (kDisagree | kMalformed)) != 0) {
    Throw(ErrorKind::kExchangeFailed, "in ", round.what(),
          " a block of another bucket or step, or none, has come");
  }
  header.verdict.Note(made.verdict);
  if ((made.flags & kSumNotFinite) != 0) header.verdict.Note(Verdict::Overflow());
  ReplaceBySum(made_.indices, made_.values, std::min<std::int64_t>(made.count, k_), round.what(),
               ctx, block);
}

}  // namespace hvd_sparse::cuda

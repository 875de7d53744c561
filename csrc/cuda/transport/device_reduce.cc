#include "csrc/cuda/transport/device_reduce.h"

#include <algorithm>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
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
  ctx.AgreeBeforehand(&header);

  RoundTimes times{Concat("gtopk, over ", gpu_transport_.Name()), SteadySeconds()};
  counted_.Reset();
  BlockHeader identity = header;
  const std::string what = Concat(ctx.what, ", ", times.name);
  SparseBlock& reduced = ctx.scratch.merged;
  const DeviceBlockHeader result = Move(*block, identity.verdict, what, &reduced);
  times.end = SteadySeconds();
  times.bytes_sent = counted_.sent();
  times.bytes_received = counted_.received();
  ctx.bytes_sent += times.bytes_sent;
  ctx.bytes_received += times.bytes_received;
  ctx.rounds.push_back(std::move(times));

  if ((result.flags & (kDisagree | kMalformed)) != 0) {
    Throw(ErrorKind::kExchangeFailed, "in ", what, " a block of another bucket or step, or none, ",
          "has come");
  }
  identity.verdict.Note(result.verdict);
  if ((result.flags & kSumNotFinite) != 0) identity.verdict.Note(Verdict::Overflow());
  identity.magic = reduced.header().magic;
  identity.count = reduced.header().count;
  reduced.header() = identity;
  std::swap(*block, reduced);
}

/// Copies the block to the device, runs all rounds, and copies the result back; returns its header.
DeviceBlockHeader TransportGTopK::Move(const SparseBlock& selected, Verdict verdict,
                                       const std::string& what, SparseBlock* reduced) {
  Work work(device_);
  const DeviceBlock& own = rounds_->selected();
  const std::int64_t count = selected.count();
  Require(count <= k_, what, " takes at most ", k_, " entries, got ", count);

  auto* const header = work.Staged<DeviceBlockHeader>(1);
  *header = {};
  header->count = static_cast<std::uint32_t>(count);
  header->verdict = verdict;
  header->bucket = selected.header().bucket;
  header->step = selected.header().step;
  header->asked = selected.header().asked;
  auto* const indices = work.Staged<Index>(count);
  for (std::int64_t i = 0; i < count; ++i) indices[i] = Marked(selected.indices()[i], true);
  auto* const values = work.Staged<float>(count);
  std::copy_n(selected.values(), count, values);
  work.Upload(header, 1, own.header);
  work.Upload(indices, count, own.indices);
  work.Upload(values, count, own.values);

  gpu_transport_.SetOperation(what);
  rounds_->Run(work.stream());

  // Copies as many entries as there can be: only the device knows yet how many there are.
  const DeviceBlock& result = rounds_->reduced();
  auto* const result_header = work.Staged<DeviceBlockHeader>(1);
  auto* const result_indices = work.Staged<Index>(k_);
  auto* const result_values = work.Staged<float>(k_);
  work.Fetch(result.header, 1, result_header);
  work.Fetch(result.indices, k_, result_indices);
  work.Fetch(result.values, k_, result_values);
  gpu_transport_.Await(work.stream(), what);
  work.NoteDone();

  const auto entries = std::min(static_cast<std::int64_t>(result_header->count), k_);
  reduced->Reset(entries);
  std::copy_n(result_indices, entries, reduced->indices());
  std::copy_n(result_values, entries, reduced->values());
  reduced->Finish(entries);
  return *result_header;
}

}  // namespace hvd_sparse::cuda

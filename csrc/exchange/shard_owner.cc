#include "csrc/exchange/shard_owner.h"

#include <algorithm>
#include <cmath>

#include "csrc/collectives/topology.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {

ShardOwner::ShardOwner(const StepRecord& record, Range range, int rank, int size)
    : shard_(ShardOf(range.size(), rank, size)), size_(size), top_k_(MakeSparsifier("top_k", {})) {
  std::vector<std::int64_t> numels;
  const Range shard{range.begin + shard_.begin, range.begin + shard_.end};
  std::int64_t begin = 0;
  for (const std::int64_t numel : record.spec.segment_numels) {
    const Range part = Overlap({begin, begin + numel}, shard);
    begin += numel;
    if (part.size() == 0) continue;
    parts_.push_back({part.begin - range.begin, part.end - range.begin});
    numels.push_back(part.size());
  }
  segments_ = Segments(numels, numels, {0, shard_.size()}, *top_k_);
  states_.resize(numels.size());
}

/// The share of each part: all owners together send on `sums` times what a rank selects, and more
/// of where ranks select more.
std::vector<std::int64_t> ShardOwner::Quotas(const std::vector<SparseBlock>& arrived,
                                             double sums) const {
  std::vector<std::int64_t> quotas;
  for (const Range part : parts_) {
    std::int64_t sent = 0;
    for (int rank = 0; rank < size_; ++rank) {
      sent += arrived[static_cast<std::size_t>(rank)].EntriesIn(part).size();
    }
    // This rank sends itself nothing: its entries of the shard are all compared.
    const double quota = std::ceil(sums * static_cast<double>(sent) / std::max(1, size_ - 1));
    const auto numel = static_cast<double>(part.size());
    quotas.push_back(static_cast<std::int64_t>(std::clamp(quota, 1.0, numel)));
  }
  return quotas;
}

void ShardOwner::Begin() {
  added_.clear();
  has_taken_ = false;
}

void ShardOwner::Take(std::vector<SparseBlock>* arrived, Span<float> residual,
                      CollectiveContext* ctx, SparseBlock* sums) {
  const std::vector<std::int64_t> quotas = Quotas(*arrived, ctx->options.sums);
  const SparseBlock& sum = ctx->SumInRankOrder(arrived);
  Verdict verdict = sum.header().verdict;
  arrived_.clear();
  for (std::int64_t i = 0; i < sum.count(); ++i) {
    arrived_.emplace_back(sum.indices()[i], sum.values()[i]);
  }
  ctx->kernels.AddErrors(arrived_, residual, &added_);
  segments_.Select(*top_k_, nullptr, quotas, states_, residual.Sub(shard_.begin, shard_.size()),
                   ctx->kernels, &taken_);
  has_taken_ = true;
  for (std::int64_t i = 0; i < taken_.count(); ++i) {
    taken_.indices()[i] += static_cast<Index>(shard_.begin);
  }
  // A sum that is not finite is among the largest.
  const bool finite = AreFinite(taken_.values(), taken_.count());
  if (!finite || CountNotCarried(ctx->wire.values, {taken_.values(), taken_.count()}) > 0) {
    verdict.Note(Verdict::Overflow());
  }
  BlockHeader identity = sums->header();
  identity.count = taken_.header().count;
  identity.magic = taken_.header().magic;
  sums->CopyFrom(taken_);
  sums->header() = identity;
  sums->header().verdict.Note(verdict);
}

void ShardOwner::PutBack(Span<float> residual, const Kernels& kernels) {
  if (has_taken_) kernels.PutBack(taken_, 0, taken_.count(), residual);
  kernels.Restore(added_, residual);
  Begin();
}

}  // namespace hvd_sparse

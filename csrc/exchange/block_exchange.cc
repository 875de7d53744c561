#include "csrc/exchange/block_exchange.h"

#include <algorithm>

#include "csrc/base/process.h"

namespace hvd_sparse {

void BlockExchange::Begin() {
  rounded_.clear();
  is_masked_ = false;
  if (owner_) owner_->Begin();
}

void BlockExchange::Reduce(CollectiveContext* ctx, Span<float> residual, DeviceReduce* device) {
  const BlockHeader written = selected_.header();
  selected_.header() = record_.Identity();
  selected_.header().magic = written.magic;
  selected_.header().count = written.count;
  reduced_.CopyFrom(selected_);
  RoundingErrors& errors = ctx->scratch.rounding_errors;
  errors.clear();
  if (owner_) {
    ctx->take_sums = [this, ctx, residual](std::vector<SparseBlock>* arrived, SparseBlock* sums) {
      owner_->Take(arrived, residual, ctx, sums);
      record_.stats.selected += sums->count();
    };
  }
  device == nullptr ? collective_.run(&reduced_, *ctx) : device->Run(&reduced_, *ctx);
  record_.stats.settle_begin = SteadySeconds();
  record_.AddUp(ctx);

  // Entries that some rank dropped return to the residual.
  settled_ = !collective_.delivers_all && !owner_ && ctx->comm.Size() > 1;
  if (settled_) ctx->kernels.Settle(selected_, reduced_, residual);

  // Rounding errors of entries that have left return to the residual; `selected_` has not been
  // rounded.
  if (!owner_) ctx->KeepErrorsOf(reduced_);
  ctx->kernels.AddErrors(errors, residual, &rounded_);
}

void BlockExchange::Scatter(Range range, Span<float> residual, int owners, const Kernels& kernels) {
  const Launch& launch = record_.launch;
  const float loss_scale = 1.0f / (launch.output_scale * static_cast<float>(owners));
  record_.overflows = 0;
  std::int64_t offset = 0;
  for (const GradView& gradient : launch.gradients) {
    const std::int64_t end = offset + gradient.numel;
    const Range own{std::clamp(range.begin, offset, end), std::clamp(range.end, offset, end)};
    for (const Range part : {Range{offset, own.begin}, own, Range{own.end, end}}) {
      if (part.size() <= 0) continue;
      const bool is_own = range.begin <= part.begin && part.end <= range.end;
      record_.overflows += kernels.Scatter(
          reduced_, launch.output_scale, static_cast<Index>(part.begin),
          gradient.Sub(part.begin - offset, part.size()),
          is_own ? residual.Sub(part.begin - range.begin, part.size()) : Span<float>(), &rounded_,
          loss_scale);
    }
    offset = end;
  }
}

void BlockExchange::MaskSelected(const Kernels& kernels) {
  if (owner_) {
    kernels.Merge(selected_, owner_->taken(), &leaving_);
    Mask(leaving_, kernels);
  } else {
    Mask(selected_, kernels);
  }
  if (is_masked_ && settled_) kernels.Settle(masked_, reduced_, record_.launch.MaskedVelocity());
}

/// Moves velocities to a block like selected values.
void BlockExchange::Mask(const SparseBlock& leaving, const Kernels& kernels) {
  const Span<float> velocity = record_.launch.MaskedVelocity();
  if (velocity.data == nullptr) return;
  masked_.Reset(leaving.count());
  const auto taken = kernels.NewCandidates(velocity, 0, leaving.count(), &masked_);
  try {
    taken->TakeAt(velocity, {leaving.indices(), leaving.count()});
    taken->Fetch();
  } catch (...) {  // out of memory
    taken->PutBack();
    throw;
  }
  masked_.Finish(leaving.count());
  is_masked_ = true;
}

void BlockExchange::PutBackVelocity(const Kernels& kernels) {
  if (is_masked_) kernels.PutBack(masked_, 0, masked_.count(), record_.launch.MaskedVelocity());
}

void BlockExchange::PutBackSelected(const Kernels& kernels) {
  kernels.Restore(rounded_, record_.launch.residual);
  rounded_.clear();
  if (owner_) owner_->PutBack(record_.launch.residual, kernels);
  kernels.PutBack(selected_, 0, selected_.count(), record_.launch.residual);
}

}  // namespace hvd_sparse

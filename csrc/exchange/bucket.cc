#include "csrc/exchange/bucket.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "csrc/base/clock.h"
#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

std::int64_t Sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

}  // namespace

Bucket::Bucket(int id, BucketSpec spec)
    : id_(id),
      spec_(std::move(spec)),
      numel_(Sum(spec_.gradient_numels)),
      sparsifier_(MakeSparsifier(spec_.sparsifier, spec_.sparsifier_options)),
      collective_(FindCollective(spec_.collective)) {
  for (const std::int64_t numel : spec_.gradient_numels) {
    Require(numel >= 0, "bucket '", spec_.name, "': numel must be >= 0, got ", numel);
  }
  const double slack = spec_.collective_options.slack;
  Require(std::isfinite(slack) && slack >= 1, "bucket '", spec_.name,
          "': slack must be finite and at least 1, got ", slack);
  Require(numel_ <= kMaxBucketNumel, "bucket '", spec_.name, "' must have at most ",
          kMaxBucketNumel, " entries, got ", numel_);
  Require(Sum(spec_.segment_numels) == numel_, "bucket '", spec_.name, "': segments hold ",
          Sum(spec_.segment_numels), " entries, gradients ", numel_);
  Require(spec_.max_ks.size() == spec_.segment_numels.size(), "bucket '", spec_.name,
          "': ", spec_.max_ks.size(), " values of k for ", spec_.segment_numels.size(),
          " segments");
  Require(spec_.wire.values != DType::kFloat64, "bucket '", spec_.name,
          "': wire_dtype must be one of float32, float16, bfloat16; got 'float64'");
  for (std::size_t s = 0; s < spec_.max_ks.size(); ++s) {
    const std::int64_t k = spec_.max_ks[s], numel = spec_.segment_numels[s];
    Require(numel >= 0, "bucket '", spec_.name, "': numel must be >= 0, got ", numel);
    if (numel == 0) continue;
    Require(1 <= k && k <= numel, "bucket '", spec_.name, "': k must lie in [1, ", numel, "], got ",
            k);
    room_ = std::max(room_, capacity_ + sparsifier_->Room(k, numel));
    capacity_ += sparsifier_->Capacity(k, numel);
  }
  pieces_ = Cut(spec_);
}

std::vector<std::vector<Bucket::Piece>> Bucket::Cut(const BucketSpec& spec) {
  std::vector<std::vector<Piece>> pieces;
  std::size_t gradient = 0;
  std::int64_t begin = 0;  // of what is left of it
  for (std::int64_t left : spec.segment_numels) {
    std::vector<Piece>& segment = pieces.emplace_back();
    while (left > 0) {
      const std::int64_t size = std::min(left, spec.gradient_numels[gradient] - begin);
      if (size > 0) segment.push_back({gradient, begin, size});
      left -= size;
      begin += size;
      if (begin < spec.gradient_numels[gradient]) continue;
      ++gradient;
      begin = 0;
    }
  }
  return pieces;
}

void Bucket::Validate(const Launch& launch) const {
  const auto fits = [&](const char* argument, std::int64_t expected, std::int64_t got) {
    Require(expected == got, argument, " of bucket '", spec_.name, "' must have size ", expected,
            ", got ", got);
  };
  fits("residual", numel_, launch.residual.size);
  fits("gradients", static_cast<std::int64_t>(spec_.gradient_numels.size()),
       static_cast<std::int64_t>(launch.gradients.size()));
  fits("decays", static_cast<std::int64_t>(spec_.gradient_numels.size()),
       static_cast<std::int64_t>(launch.decays.size()));
  fits("states", static_cast<std::int64_t>(spec_.segment_numels.size()), launch.states.size);
  fits("ks", static_cast<std::int64_t>(spec_.segment_numels.size()),
       static_cast<std::int64_t>(launch.ks.size()));
  for (std::size_t i = 0; i < launch.gradients.size(); ++i) {
    fits("a gradient", spec_.gradient_numels[i], launch.gradients[i].numel);
    Require(std::isfinite(launch.decays[i]), "decay of bucket '", spec_.name,
            "' must be finite, got ", launch.decays[i]);
  }
  for (std::size_t s = 0; s < launch.ks.size(); ++s) {
    if (spec_.segment_numels[s] == 0) continue;
    Require(1 <= launch.ks[s] && launch.ks[s] <= spec_.max_ks[s], "k of bucket '", spec_.name,
            "' must lie in [1, ", spec_.max_ks[s], "], got ", launch.ks[s]);
  }
}

Feedback Bucket::FeedbackOf(const Piece& piece, Span<float> residual) const {
  GradView gradient = launch_.gradients[piece.gradient];
  gradient.data = static_cast<std::uint8_t*>(gradient.data) + piece.begin * SizeOf(gradient.dtype);
  gradient.numel = piece.size;
  return {gradient, launch_.decays[piece.gradient], launch_.scale, residual};
}

void Bucket::Select(Launch launch, int rank, const Kernels& kernels) {
  const double start = SteadySeconds();
  launch_ = std::move(launch);
  stats_ = {};
  stats_.select_begin = start;
  stats_.step = steps_;
  stats_.numel = numel_;

  // Error feedback. The residual is the bucket's fusion buffer too: adding is packing.
  selected_.Reset(room_);
  rounded_.clear();
  std::int64_t offset = 0, filled = 0, not_finite = 0;
  std::vector<Feedback> feedback;
  for (std::size_t s = 0; s < spec_.segment_numels.size(); ++s) {
    const std::int64_t numel = spec_.segment_numels[s], k = launch_.ks[s];
    if (numel == 0) continue;
    const Span<float> residual = launch_.residual.Sub(offset, numel);
    feedback.clear();
    std::int64_t begin = 0;
    for (const Piece& piece : pieces_[s]) {
      feedback.push_back(FeedbackOf(piece, residual.Sub(begin, piece.size)));
      begin += piece.size;
    }
    Selection selection(feedback, residual, static_cast<Index>(offset), filled,
                        sparsifier_->Room(k, numel), kernels, &selected_);
    try {
      sparsifier_->Select(k, &launch_.states[s], &selection);
    } catch (...) {  // out of memory
      kernels.PutBack(selected_, 0, filled + selection.taken(), launch_.residual);
      throw;
    }
    filled += selection.taken();
    not_finite += selection.not_finite();
    stats_.asked += k;
    offset += numel;
  }
  selected_.Finish(filled);
  collective_.Trim(stats_.asked, launch_.residual, kernels, &selected_);
  selected_.header().bucket = static_cast<std::uint32_t>(id_);
  selected_.header().step = static_cast<std::uint32_t>(steps_++);
  selected_.header().asked = static_cast<std::uint32_t>(stats_.asked);
  selected_.header().format = spec_.wire.Id();
  selected_.header().bad_rank = not_finite > 0 ? rank : kNoRank;

  stats_.selected = selected_.count();
  stats_.select_end = SteadySeconds();
  stats_.select_seconds = stats_.select_end - stats_.select_begin;
}

void Bucket::Reduce(Communicator& comm, const Kernels& kernels) {
  stats_.exchange_begin = SteadySeconds();
  CollectiveContext ctx{comm,      kernels,
                        scratch_,  stats_.asked,
                        capacity_, "bucket '" + spec_.name + "'",
                        numel_,    spec_.collective_options,
                        spec_.wire};
  reduced_.CopyFrom(selected_);
  scratch_.rounding_errors.clear();
  collective_.Run(&reduced_, ctx);
  stats_.settle_begin = SteadySeconds();

  // What some rank dropped on the way goes back to the residual.
  if (!collective_.DeliversAll() && comm.Size() > 1) {
    kernels.Settle(selected_, reduced_, launch_.residual);
  }

  // What the wire rounded away of a delivered entry returns; `selected_` has not been rounded.
  rounded_.clear();
  ctx.KeepErrorsOf(reduced_);
  kernels.AddErrors(scratch_.rounding_errors, launch_.residual, &rounded_);

  // What a narrow type rounds away is shared by the ranks' residuals, in units of the sum.
  const float loss_scale = 1.0f / (launch_.output_scale * static_cast<float>(comm.Size()));
  overflows_ = 0;
  std::int64_t offset = 0;
  for (const GradView& gradient : launch_.gradients) {
    overflows_ +=
        kernels.Scatter(reduced_, launch_.output_scale, static_cast<Index>(offset), gradient,
                        launch_.residual.Sub(offset, gradient.numel), &rounded_, loss_scale);
    offset += gradient.numel;
  }

  stats_.reduced = reduced_.count();
  stats_.bytes_sent = ctx.bytes_sent;
  stats_.bytes_received = ctx.bytes_received;
  stats_.rounds = std::move(ctx.rounds);
  stats_.exchange_end = SteadySeconds();
  stats_.exchange_seconds = stats_.exchange_end - stats_.exchange_begin;
}

void Bucket::PutBack(const Kernels& kernels) {
  for (auto entry = rounded_.rbegin(); entry != rounded_.rend(); ++entry) {
    launch_.residual[entry->first] = entry->second;
  }
  rounded_.clear();
  kernels.PutBack(selected_, 0, selected_.count(), launch_.residual);
}

}  // namespace hvd_sparse

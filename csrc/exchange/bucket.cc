#include "csrc/exchange/bucket.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/comm/group_communicator.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/cpu_finite.h"

namespace hvd_sparse {
namespace {

/// The fault as shown to users, after the gradient's name.
const char* TextOf(GradientFault fault) {
  switch (fault) {
    case GradientFault::kBeyondFloat32:
      return "exceeds float32's range (3.4e38), alone or added to its residual or velocity";
    case GradientFault::kHoldsNonFinite:
      return "holds NaN or Inf";
    case GradientFault::kUnchecked:
      break;
  }
  return "holds NaN or Inf, or exceeds float32's range (3.4e38)";
}

}  // namespace

Bucket::Bucket(int id, BucketSpec spec, NodePlace place)
    : id_(id),
      spec_(std::move(spec)),
      numel_(spec_.Numel()),
      sparsifier_(MakeSparsifier(spec_.sparsifier, spec_.sparsifier_options)),
      collective_(FindCollective(spec_.collective)),
      sparse_(collective_.AsSparse()) {
  CheckSpec(spec_);
  slices_ = Cut(spec_);
  for (const std::vector<GradientSlice>& segment : slices_) feedback_.reserve(segment.size());
  const auto segments_in = [&](Range range) {
    return Segments(spec_.segment_numels, spec_.max_ks, range, *sparsifier_);
  };
  if (collective_.SumsNodesFirst() && place.local_size > 1) {
    node_ = std::make_unique<NodeSum>(numel_, place);
  }
  if (sparse_ == nullptr) {
    dense_ = std::make_unique<DenseStep>(spec_, place, node_.get(), DenseWorkFor(spec_.device));
    return;
  }
  if (node_ == nullptr) {
    segments_ = segments_in({0, numel_});
    return;
  }
  segments_ = segments_in(node_->shard());
  for (int rank = 0; rank < place.local_size; ++rank) {
    const Range shard = ShardOf(numel_, rank, place.local_size);
    gather_room_ = std::max(gather_room_, segments_in(shard).capacity());
  }
}

std::vector<std::vector<Bucket::GradientSlice>> Bucket::Cut(const BucketSpec& spec) {
  std::vector<std::vector<GradientSlice>> slices;
  std::size_t gradient = 0;
  std::int64_t begin = 0;  // of the rest of this gradient
  for (std::int64_t left : spec.segment_numels) {
    std::vector<GradientSlice>& segment = slices.emplace_back();
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
  return slices;
}

/// Returns the feedback that is added to the residual of a segment; valid until the next call.
/// Allocates no memory.
Span<const Feedback> Bucket::FeedbackOf(std::size_t segment, Span<float> residual) {
  feedback_.clear();
  std::int64_t begin = 0;
  for (const GradientSlice& slice : slices_[segment]) {
    feedback_.push_back({inflow_[slice.gradient].Sub(slice.begin, slice.size),
                         launch_.decays[slice.gradient], inflow_scale_,
                         residual.Sub(begin, slice.size)});
    begin += slice.size;
  }
  return feedback_;
}

/// Runs error feedback without selection. Returns how many entries of the gradients were not
/// finite.
std::int64_t Bucket::Accumulate(const Kernels& kernels) {
  std::int64_t not_finite = 0, offset = 0;
  for (std::size_t s = 0; s < spec_.segment_numels.size(); offset += spec_.segment_numels[s++]) {
    const Span<float> residual = launch_.residual.Sub(offset, spec_.segment_numels[s]);
    for (const Feedback& part : FeedbackOf(s, residual)) not_finite += kernels.Accumulate(part);
  }
  return not_finite;
}

/// velocity = momentum * velocity + scale * gradient; from now on the velocity is added to the
/// residual. Returns how many entries were not finite; they count as zero.
std::int64_t Bucket::JoinVelocity(const Kernels& kernels) {
  std::int64_t not_finite = 0, offset = 0;
  for (GradView& inflow : inflow_) {
    const Span<float> velocity = launch_.velocity.Sub(offset, inflow.numel);
    not_finite += kernels.Accumulate({inflow, launch_.momentum, launch_.scale, velocity});
    offset += inflow.numel;
    inflow = {velocity.data, velocity.size, DType::kFloat32};
  }
  inflow_scale_ = 1;
  return not_finite;
}

/// Returns why a gradient of this rank cannot be added to its residual; checked only for gradients
/// in CPU memory.
GradientFault Bucket::Fault(const Kernels& kernels) const {
  if (&kernels != &CpuKernels()) return GradientFault::kUnchecked;
  const auto& gradients = launch_.gradients;
  const bool finite = std::all_of(gradients.begin(), gradients.end(), cpu::AllFinite);
  return finite ? GradientFault::kBeyondFloat32 : GradientFault::kHoldsNonFinite;
}

std::string Bucket::Problem() const {
  if (verdict().IsOverflow()) {
    const bool nodes = sparse_ != nullptr && collective_.SumsNodesFirst();
    return Concat("the sum of the ", nodes ? "residuals of a node or of all nodes" : "gradients",
                  " in bucket '", spec_.name, "' overflows");
  }
  if (verdict().IsBadGradient()) {
    return Concat("the gradient of rank ", verdict().rank(), " in bucket '", spec_.name, "' ",
                  TextOf(verdict().fault()));
  }
  if (overflows_ == 0) return "";
  return Concat("the sum of the gradients in bucket '", spec_.name, "' overflows in ", overflows_,
                " entries");
}

/// Returns the header of this rank's first message in a step.
BlockHeader Bucket::Identity() const {
  BlockHeader identity;
  identity.bucket = static_cast<std::uint32_t>(id_);
  identity.step = static_cast<std::uint32_t>(stats_.step);
  identity.asked = static_cast<std::uint32_t>(stats_.asked);
  identity.format = spec_.wire.Id();
  identity.route = stats_.route;
  identity.verdict = own_verdict_;
  return identity;
}

void Bucket::Begin(Launch launch) {
  launch_ = std::move(launch);
  stats_ = {};
  stats_.step = steps_++;
  stats_.numel = numel_;
  stats_.ready = launch_.ready != 0 ? launch_.ready : SteadySeconds();
  for (std::size_t s = 0; s < launch_.ks.size(); ++s) {
    if (spec_.segment_numels[s] > 0) stats_.asked += launch_.ks[s];
  }
  rounded_.clear();
  is_masked_ = false;
  is_enqueued_ = false;
}

void Bucket::Select(Launch launch, int rank, const Kernels& kernels) {
  Begin(std::move(launch));
  stats_.select_begin = SteadySeconds();

  // Error feedback. The residual is the bucket's fusion buffer too: adding is packing. Once the
  // velocity is updated it must be added to the residual, so whatever allocates memory comes first.
  inflow_ = launch_.gradients;
  inflow_scale_ = launch_.scale;
  if (dense_ != nullptr) {
    dense_->Prepare();
  } else if (node_ == nullptr) {
    selected_.Reset(segments_.room());
  }
  std::int64_t not_finite = launch_.velocity.data == nullptr ? 0 : JoinVelocity(kernels);
  if (dense_ != nullptr) {
    not_finite += dense_->Take(inflow_, inflow_scale_, launch_, kernels);
    stats_.selected = numel_;
  } else if (node_ == nullptr) {
    const auto gradients_of = [this](auto... arguments) { return FeedbackOf(arguments...); };
    not_finite += segments_.Select(*sparsifier_, gradients_of, launch_.ks, launch_.states,
                                   launch_.residual, kernels, &selected_);
    try {
      sparse_->Trim(stats_.asked, launch_.residual, kernels, &selected_);
    } catch (...) {  // out of memory
      kernels.PutBack(selected_, 0, selected_.count(), launch_.residual);
      throw;
    }
    stats_.selected = selected_.count();
  } else {
    not_finite += Accumulate(kernels);
  }
  own_verdict_ = not_finite > 0 ? Verdict::BadGradient(rank, Fault(kernels)) : Verdict();
  stats_.select_end = SteadySeconds();
  stats_.select_seconds = stats_.select_end - stats_.select_begin;
}

CollectiveContext Bucket::ContextOf(Communicator& comm, const Kernels& kernels, WireFormat wire) {
  const std::int64_t numel = node_ == nullptr ? numel_ : node_->shard().size();
  return {comm,
          kernels,
          scratch_,
          segments_.Asked(launch_.ks),
          segments_.capacity(),
          "bucket '" + spec_.name + "'",
          numel,
          spec_.collective_options,
          wire};
}

void Bucket::AddUp(CollectiveContext* ctx) {
  stats_.bytes_sent += ctx->bytes_sent;
  stats_.bytes_received += ctx->bytes_received;
  stats_.rounds.insert(stats_.rounds.end(), std::make_move_iterator(ctx->rounds.begin()),
                       std::make_move_iterator(ctx->rounds.end()));
}

/// Runs the collective between ranks that have selected from their residuals of the same entries.
void Bucket::ReduceBetween(Communicator& comm, Span<float> residual, const Kernels& kernels) {
  CollectiveContext ctx = ContextOf(comm, kernels, spec_.wire);
  const BlockHeader written = selected_.header();
  selected_.header() = Identity();
  selected_.header().magic = written.magic;
  selected_.header().count = written.count;
  reduced_.CopyFrom(selected_);
  scratch_.rounding_errors.clear();
  device_reduce_ == nullptr ? sparse_->Run(&reduced_, ctx) : device_reduce_->Run(&reduced_, ctx);
  stats_.settle_begin = SteadySeconds();
  AddUp(&ctx);

  // Entries that some rank dropped return to the residual.
  settled_ = !collective_.DeliversAll() && comm.Size() > 1;
  if (settled_) kernels.Settle(selected_, reduced_, residual);

  // Rounding errors of delivered entries return to the residual; `selected_` has not been rounded.
  ctx.KeepErrorsOf(reduced_);
  kernels.AddErrors(scratch_.rounding_errors, residual, &rounded_);
}

/// The communicators of this rank's node, and of the owners of its shard on all nodes.
struct Bucket::NodeGroups {
  NodeGroups(Communicator* comm, NodePlace place)
      : node(comm, comm->Rank() - place.local_rank, 1, place.local_size),
        between(comm, place.local_rank, place.local_size, comm->Size() / place.local_size) {}

  GroupCommunicator node, between;
};

/// Sums all entries, whose errors stay in the residual.
void Bucket::ReduceDense(Communicator& comm, const Kernels& kernels) {
  BlockHeader identity = Identity();
  if (node_ == nullptr) {
    CollectiveContext ctx = ContextOf(comm, kernels, spec_.wire);
    dense_->Reduce(launch_, &identity, &ctx);
    AddUp(&ctx);
  } else {
    NodeGroups groups(&comm, node_->place());
    CollectiveContext inside = ContextOf(groups.node, kernels, spec_.wire);
    CollectiveContext between = ContextOf(groups.between, kernels, spec_.wire);
    dense_->ReduceOverNodes(launch_, &identity, &inside, &between);
    AddUp(&inside);
    AddUp(&between);
  }
  stats_.settle_begin = SteadySeconds();
  overflows_ = dense_->overflows();
  reduced_.Reset(0);
  reduced_.Finish(0);
  reduced_.header().verdict = identity.verdict;
}

/// Like ReduceBetween, but on this rank's shard of its node's sum, between the owners of that
/// shard.
void Bucket::ReduceOverNodes(Communicator& comm, const Kernels& kernels) {
  NodeGroups groups(&comm, node_->place());
  CollectiveContext inside = ContextOf(groups.node, kernels, spec_.wire);
  BlockHeader identity = Identity();
  const bool finite = node_->Add(launch_.residual, &identity, inside);
  AddUp(&inside);
  own_verdict_ = identity.verdict;

  selected_.Reset(0);
  selected_.Finish(0);
  if (finite) {  // else no rank will apply this step
    segments_.Select(*sparsifier_, nullptr, launch_.ks, launch_.states, node_->values(), kernels,
                     &selected_);
    sparse_->Trim(inside.k, node_->values(), kernels, &selected_);
  }
  stats_.selected = selected_.count();
  ReduceBetween(groups.between, node_->values(), kernels);

  // Finished sums are sent as they are.
  CollectiveContext back = ContextOf(groups.node, kernels, {});
  back.numel = numel_;  // shards differ in length; Gather knows each
  reduced_.header().format = back.wire.Id();
  reduced_.header().kept = 0;  // differs between shards
  node_->Gather(gather_room_, &reduced_, back);
  AddUp(&back);
  stats_.settle_begin = SteadySeconds();  // all rounds lie before it
  Scatter(node_->shard(), node_->values(), groups.between.Size(), kernels);
  rounded_.clear();  // the sum took the errors; the residual is as it was
}

void Bucket::Reduce(Communicator& comm, const Kernels& kernels, GpuCollectives* gpu_collectives) {
  stats_.exchange_begin = SteadySeconds();
  if (gpu_collectives != nullptr && device_reduce_ == nullptr) {
    device_reduce_ = gpu_collectives->GTopK();
  }
  stats_.route = device_reduce_ == nullptr ? Route::kCalls : Route::kRounds;
  rounded_.clear();
  if (dense_ != nullptr) {
    ReduceDense(comm, kernels);
  } else if (node_ == nullptr) {
    ReduceBetween(comm, launch_.residual, kernels);
    Scatter({0, numel_}, launch_.residual, comm.Size(), kernels);
  } else {
    ReduceOverNodes(comm, kernels);
  }
  // A dense sum delays nothing, so it masks nothing.
  if (launch_.velocity.data != nullptr && dense_ == nullptr) MaskVelocity(kernels);
  RequireKnown(comm.Rank());
  stats_.reduced = dense_ == nullptr ? reduced_.count() : numel_;
  stats_.exchange_end = SteadySeconds();
  stats_.exchange_seconds = stats_.exchange_end - stats_.exchange_begin;
}

/// Throws unless the result knows of this rank's NaN and Inf: each rank sends its verdict, and the
/// worst is kept.
void Bucket::RequireKnown(int rank) const {
  if (verdict().Covers(own_verdict_)) return;
  Throw(ErrorKind::kExchangeFailed, "rank ", rank, ": the result of bucket '", spec_.name,
        "' knows of no NaN or Inf, and this rank does: what a rank has sent is damaged");
}

/// Writes the result into the gradients. Errors of rounding to a narrow type are shared by the
/// `owners` of each entry, in units of the sum; `residual` is that of `range`, which this rank
/// owns.
void Bucket::Scatter(Range range, Span<float> residual, int owners, const Kernels& kernels) {
  const float loss_scale = 1.0f / (launch_.output_scale * static_cast<float>(owners));
  overflows_ = 0;
  std::int64_t offset = 0;
  for (const GradView& gradient : launch_.gradients) {
    const std::int64_t end = offset + gradient.numel;
    const Range own{std::clamp(range.begin, offset, end), std::clamp(range.end, offset, end)};
    for (const Range part : {Range{offset, own.begin}, own, Range{own.end, end}}) {
      if (part.size() <= 0) continue;
      const bool is_own = range.begin <= part.begin && part.end <= range.end;
      overflows_ += kernels.Scatter(
          reduced_, launch_.output_scale, static_cast<Index>(part.begin),
          gradient.Sub(part.begin - offset, part.size()),
          is_own ? residual.Sub(part.begin - range.begin, part.size()) : Span<float>(), &rounded_,
          loss_scale);
    }
    offset = end;
  }
}

void Bucket::PutBack(const Kernels& kernels) {
  if (is_enqueued_) return device_step_->PutBack();
  if (is_masked_) kernels.PutBack(masked_, 0, masked_.count(), launch_.velocity);
  if (dense_ != nullptr) return dense_->PutBack(launch_.residual);
  if (node_ != nullptr) return;  // nothing has left the residual
  kernels.Restore(rounded_, launch_.residual);
  rounded_.clear();
  kernels.PutBack(selected_, 0, selected_.count(), launch_.residual);
}

void Bucket::Commit() {
  if (node_ != nullptr) node_->Commit(launch_.residual);
}

/// Momentum factor masking: moves velocities to a block like selected values, and returns those of
/// entries that were not delivered. All ranks of a node share in its sum: there, all entries of the
/// result are masked.
void Bucket::MaskVelocity(const Kernels& kernels) {
  const SparseBlock& leaving = node_ == nullptr ? selected_ : reduced_;
  masked_.Reset(leaving.count());
  kernels.TakeAt(launch_.velocity, {leaving.indices(), leaving.count()}, 0, 0, &masked_);
  masked_.Finish(leaving.count());
  is_masked_ = true;
  if (node_ == nullptr && settled_) kernels.Settle(masked_, reduced_, launch_.velocity);
}

}  // namespace hvd_sparse

#include "csrc/cuda/step/bucket_tables.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/samples.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse::cuda {
namespace {

/// Changes that may be in flight at a time.
constexpr int kSlots = 4;

ThresholdControl ControlOf(std::int64_t numel, std::int64_t k) {
  const std::int64_t most = MostFor(k, numel), room = RoomForCandidates(k, numel);
  const bool takes_all = most == numel;
  const auto narrow = [](std::int64_t count) { return static_cast<std::uint32_t>(count); };
  return {narrow(k), takes_all ? 0 : narrow(FewestFor(k)), narrow(most), narrow(room), takes_all};
}

/// Copies a table behind the previous ones; a divider without memory only adds its size.
template <typename T>
const T* Put(const std::vector<T>& table, Divider* divider) {
  T* const memory = divider->Take<T>(static_cast<std::int64_t>(table.size()));
  if (memory != nullptr) std::copy(table.begin(), table.end(), memory);
  return memory;
}

/// Writes the values of a step to `memory`, unless that is null; returns their size in bytes.
std::size_t PutChanging(const std::vector<GradientMemory>& gradient_memory,
                        const std::vector<ThresholdControl>& controls, void* memory) {
  Divider divider(memory);
  Put(gradient_memory, &divider);
  Put(controls, &divider);
  return divider.used();
}

}  // namespace

BucketTables::BucketTables(const BucketLayout& layout)
    : segments_(layout.segments),
      segment_numels_(layout.segment_numels),
      gradient_memory_(layout.gradient_begins.size() - 1),
      controls_(layout.segments.size()),
      layout_(SizeOfAll([&](Divider* divider) { DivideLayout(divider, layout); })),
      changing_(PutChanging(gradient_memory_, controls_, nullptr)) {
  const PinnedBytes pinned(layout_.size());
  Divider staged(pinned.get()), on_device(layout_.get()), changing(changing_.get());
  Put(layout.tiles, &staged);
  Put(layout.segments, &staged);
  Put(layout.groups, &staged);
  Put(layout.chunks, &staged);
  Put(layout.gradient_begins, &staged);
  Check(cudaMemcpy(layout_.get(), pinned.get(), layout_.size(), cudaMemcpyHostToDevice),
        "copy the layout of a bucket");
  DivideLayout(&on_device, layout);
  view_.gradient_memory =
      changing.Take<GradientMemory>(static_cast<std::int64_t>(gradient_memory_.size()));
  view_.controls = changing.Take<ThresholdControl>(static_cast<std::int64_t>(controls_.size()));
  for (int slot = 0; slot < kSlots; ++slot) {
    slots_.push_back(std::make_unique<Slot>(changing_.size()));
  }
}

void BucketTables::DivideLayout(Divider* divider, const BucketLayout& layout) {
  const auto take = [divider](const auto& table, auto** memory, unsigned* count) {
    using T = typename std::decay_t<decltype(table)>::value_type;
    *memory = divider->Take<T>(static_cast<std::int64_t>(table.size()));
    *count = static_cast<unsigned>(table.size());
  };
  take(layout.tiles, &view_.tiles, &view_.tile_count);
  take(layout.segments, &view_.segments, &view_.segment_count);
  take(layout.groups, &view_.groups, &view_.group_count);
  take(layout.chunks, &view_.chunks, &view_.chunk_count);
  take(layout.gradient_begins, &view_.gradient_begins, &view_.gradient_count);
  --view_.gradient_count;  // the last entry is an end
}

void BucketTables::Update(const DeviceLaunch& launch, cudaStream_t stream) {
  for (std::size_t i = 0; i < gradient_memory_.size(); ++i) {
    const GradView &from = launch.gradients[i], &to = launch.outputs[i];
    gradient_memory_[i] = {from.data, to.data, from.dtype, to.dtype, launch.decays[i]};
  }
  asked_ = 0;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const std::int64_t k = launch.ks[static_cast<std::size_t>(segments_[s].number)];
    controls_[s] = ControlOf(segment_numels_[s], k);
    asked_ += k;
  }
  Send(stream);
}

void BucketTables::Send(cudaStream_t stream) {
  std::vector<char> wanted(changing_.size());
  PutChanging(gradient_memory_, controls_, wanted.data());
  if (wanted == sent_) return;
  Slot& slot = *slots_[next_slot_++ % slots_.size()];
  if (slot.is_used && !slot.read.Passed()) slot.read.Wait();
  std::copy(wanted.begin(), wanted.end(), static_cast<char*>(slot.memory.get()));
  sent_.clear();
  Check(cudaMemcpyAsync(changing_.get(), slot.memory.get(), changing_.size(),
                        cudaMemcpyHostToDevice, stream),
        "copy what a step brings");
  slot.read.Record(stream);
  slot.is_used = true;
  sent_ = std::move(wanted);
}

void CheckStep(const BucketSpec& spec, const DeviceLaunch& launch) {
  CheckLaunch(spec, launch);
  CheckGradients(spec, "outputs", launch.outputs);
  Require(launch.states.data != nullptr, "states of bucket '", spec.name, "' must have memory");
  Require(launch.output_scale > 0 && std::isfinite(launch.output_scale), "output_scale of bucket '",
          spec.name, "' must be > 0 and finite, got ", launch.output_scale);
}

}  // namespace hvd_sparse::cuda

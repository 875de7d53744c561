#include "csrc/cuda/device_selector.h"

#include "csrc/base/error.h"
#include "csrc/sparsifiers/samples.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse::cuda {
namespace {

ThresholdControl ControlOf(std::int64_t numel, std::int64_t k, double refresh) {
  Require(1 <= numel && numel <= kMaxBucketNumel, "numel must lie in [1, ", kMaxBucketNumel,
          "], got ", numel);
  Require(1 <= k && k <= numel, "k must lie in [1, ", numel, "], got ", k);
  Require(refresh >= 1, "refresh must be >= 1, got ", refresh);
  const std::int64_t most = MostFor(k, numel), room = RoomForCandidates(k, numel);
  const bool takes_all = most == numel;
  return {numel, k, takes_all ? 0 : FewestFor(k), most, room, refresh, takes_all};
}

}  // namespace

DeviceSelector::DeviceSelector(std::int64_t numel, std::int64_t k, double refresh)
    : control_(ControlOf(numel, k, refresh)),
      zeros_(SizeOfAll([this](Divider* divider) { DivideZeros(divider); })),
      rest_(SizeOfAll([this](Divider* divider) { DivideRest(divider); })) {
  Divider zeros(zeros_.get()), rest(rest_.get());
  DivideZeros(&zeros);
  DivideRest(&rest);
}

void DeviceSelector::DivideZeros(Divider* divider) {
  take_ = TakeScratch::From(divider, control_.numel);
  exact_ = ResidualTopKScratch::From(divider, control_.numel);
  trim_ = TopKScratch::From(divider, DeviceBlock::CapacityFor(control_.room));
}

void DeviceSelector::DivideRest(Divider* divider) {
  taken_ = divider->TakeBlock(control_.room);
  tried_ = divider->Take<float>(1);
}

void DeviceSelector::Select(const Feedback& feedback, const Identity& identity,
                            SelectionState* state, const DeviceBlock& selected,
                            cudaStream_t stream) {
  const Span<float> residual = feedback.residual;
  Require(residual.size == numel(), "residual must have size ", numel(), ", got ", residual.size);
  Require(feedback.grad.data == nullptr || feedback.grad.numel == numel(),
          "gradient must have size ", numel(), ", got ", feedback.grad.numel);
  const Taken taken{taken_.indices, taken_.values, taken_.capacity, 0};
  const Missed missed{take_.totals(), static_cast<unsigned>(control_.fewest),
                      static_cast<unsigned>(control_.room)};
  zeros_.Clear(stream);
  LaunchFirstThreshold(control_, state, tried_, stream);
  LaunchTakeAbove(feedback, tried_, taken, take_, stream);
  LaunchTopKIfMissed(residual, k(), missed, taken, exact_, stream);
  LaunchSeal(taken_, identity, take_, missed, &exact_, stream);
  LaunchKeepTopK({k(), false, true, residual}, taken_, selected, trim_, stream);
  LaunchLearn(control_, tried_, taken_, selected, trim_.cut(), state, stream);
}

}  // namespace hvd_sparse::cuda

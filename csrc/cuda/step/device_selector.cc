#include "csrc/cuda/step/device_selector.h"

#include "csrc/cuda/step/launches.h"

namespace hvd_sparse::cuda {

DeviceSelector::DeviceSelector(const BucketLayout& layout, double refresh)
    : zeros_([&](Divider* divider) { DivideZeros(layout, divider); }),
      rest_([&](Divider* divider) { DivideRest(layout, divider); }) {
  work_.refresh = refresh;
}

void DeviceSelector::DivideZeros(const BucketLayout& layout, Divider* divider) {
  work_.DivideZeros(layout, divider);
  trim_ = TopKScratch::From(divider, DeviceBlock::CapacityFor(layout.capacity));
}

void DeviceSelector::DivideRest(const BucketLayout& layout, Divider* divider) {
  work_.DivideRest(layout, divider);
  taken_ = divider->TakeBlock(layout.capacity);
}

void DeviceSelector::Select(const DeviceLaunch& launch, const BucketTables& tables,
                            const Identity& identity, const DeviceBlock& selected,
                            cudaStream_t stream) {
  work_.bucket = tables.view();
  work_.residual = launch.residual.data;
  work_.velocity = launch.velocity.data;
  work_.momentum = launch.momentum;
  work_.scale = launch.scale;
  work_.states = launch.states.data;
  zeros_.Clear(stream);
  LaunchFirstThresholds(work_, stream);
  LaunchFeedbackAndTake(work_, stream);
  LaunchTopKWhereMissed(work_, stream);
  LaunchCloseSegments(work_, taken_, identity, stream);
  LaunchGather(work_, taken_, tables.asked(), trim_.digits, stream);
  LaunchKeepTopK({tables.asked(), true, true, launch.residual}, taken_, selected, trim_, stream);
}

}  // namespace hvd_sparse::cuda

#include "csrc/cuda/step/device_exchange.h"

#include "csrc/cuda/step/launches.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse::cuda {

DeviceExchange::DeviceExchange(const BucketSpec& spec, std::uint32_t id, DeviceTransport* transport)
    : spec_(spec),
      id_(id),
      rank_(transport->Rank()),
      size_(transport->Size()),
      tables_(BucketLayout(spec)),
      selector_(BucketLayout(spec), RefreshOf(spec.sparsifier_options)),
      rounds_(spec.Numel(), spec.MaxAsked(), spec.collective_options, transport) {}

void DeviceExchange::Run(const DeviceLaunch& launch, cudaStream_t stream) {
  Select(launch, stream);
  Exchange(launch, stream);
}

void DeviceExchange::Select(const DeviceLaunch& launch, cudaStream_t stream) {
  CheckStep(spec_, launch);
  tables_.Update(launch, stream);
  rounds_.Ask(tables_.asked());
  const Identity identity{rank_, id_, step_, static_cast<std::uint32_t>(tables_.asked())};
  selector_.Select(launch, tables_, identity, selected(), stream);
  ++step_;
}

void DeviceExchange::Exchange(const DeviceLaunch& launch, cudaStream_t stream) {
  rounds_.Run(stream);

  // Whatever might refuse the step comes before all that cannot be undone.
  const float loss_scale = 1.0f / (launch.output_scale * static_cast<float>(size_));
  ApplyArgs args{tables_.view(), reduced(), launch.output_scale, launch.residual, loss_scale};
  LaunchCheckFits(args, stream);
  LaunchSettle({selected(), reduced(), launch.residual, launch.MaskedVelocity(), launch.masked},
               stream);
  if (launch.former != nullptr) {
    const DeviceBlock former = DeviceBlock::In(launch.former, reduced().capacity);
    LaunchNoteFormer(reduced(), launch.residual, former, stream);
    args.reduced.header = former.header;
    args.reduced.indices = former.indices;
  }
  LaunchApply(args, stream);
}

void DeviceExchange::Fetch(DeviceBlockHeader* pinned, cudaStream_t stream) const {
  Copy<DeviceBlockHeader>(reduced().header, 1, pinned, stream);
}

}  // namespace hvd_sparse::cuda

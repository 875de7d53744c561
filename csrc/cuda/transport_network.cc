#include "csrc/cuda/transport_network.h"

#include <utility>

#include "csrc/cuda/device_reduce.h"
#include "csrc/cuda/stream.h"
#include "csrc/cuda/transport_step.h"

namespace hvd_sparse::cuda {
namespace {

class TransportNetwork final : public DeviceNetwork {
 public:
  TransportNetwork(int device, std::unique_ptr<NetworkTransport> transport)
      : device_(device), transport_(std::move(transport)) {}

  std::unique_ptr<DeviceReduce> GTopK() override {
    return std::make_unique<TransportGTopK>(device_, transport_.get());
  }

  std::unique_ptr<DeviceStep> Step(const DeviceStepSpec& spec) override {
    const OnDevice current(device_);
    return std::make_unique<TransportStep>(spec, device_, transport_.get());
  }

 private:
  const int device_;
  const std::unique_ptr<NetworkTransport> transport_;
};

}  // namespace

std::unique_ptr<DeviceNetwork> MakeTransportNetwork(int device,
                                                    std::unique_ptr<NetworkTransport> transport) {
  return std::make_unique<TransportNetwork>(device, std::move(transport));
}

}  // namespace hvd_sparse::cuda

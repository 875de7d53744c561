#include "csrc/cuda/nccl_network.h"

#include <memory>
#include <string>
#include <utility>

#include "csrc/comm/patience.h"
#include "csrc/cuda/device_reduce.h"
#include "csrc/cuda/nccl_transport.h"
#include "csrc/cuda/transport_step.h"

namespace hvd_sparse::cuda {
namespace {

constexpr const char* kName = "NCCL";

class NcclNetwork final : public DeviceNetwork {
 public:
  NcclNetwork(int device, std::unique_ptr<NcclTransport> transport)
      : device_(device), transport_(std::move(transport)) {}

  std::unique_ptr<DeviceReduce> GTopK() override {
    auto await = [this](cudaStream_t stream, const std::string& what) {
      transport_->Await(stream, what);
    };
    return std::make_unique<TransportGTopK>(device_, transport_.get(), kName, await);
  }

  std::unique_ptr<DeviceStep> Step(const DeviceStepSpec& spec) override {
    auto begin_await = [this](const std::string& what) -> TransportStep::Await {
      auto waiting = std::make_shared<NcclTransport::Waiting>(transport_.get(), what);
      return [waiting](const Event& mark, double seconds) {
        return waiting->For(seconds, [&mark] { return mark.Passed(); });
      };
    };
    const OnDevice current(device_);
    return std::make_unique<TransportStep>(spec, device_, transport_.get(), transport_->stream(),
                                           kName, begin_await);
  }

 private:
  const int device_;
  const std::unique_ptr<NcclTransport> transport_;
};

}  // namespace

DeviceConnection ConnectOverNccl(Communicator* comm, int device) {
  NcclConnection made = ConnectNccl(comm, device, WaitLimits::FromEnvironment());
  if (made.transport == nullptr) return {nullptr, made.problem, made.declined};
  return {std::make_unique<NcclNetwork>(device, std::move(made.transport)), "", false};
}

}  // namespace hvd_sparse::cuda

#include "csrc/cuda/transport/transport_collectives.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/device_reduce.h"
#include "csrc/cuda/transport/timed_rounds.h"
#include "csrc/cuda/transport/transport_step.h"

namespace hvd_sparse::cuda {
namespace {

class TransportCollectives final : public GpuCollectives {
 public:
  TransportCollectives(int device, std::unique_ptr<GpuTransport> transport)
      : device_(device), transport_(std::move(transport)) {}

  std::unique_ptr<DeviceReduce> GTopK() override {
    return std::make_unique<TransportGTopK>(device_, transport_.get());
  }

  std::unique_ptr<DeviceStep> Step(const BucketSpec& spec, std::uint32_t id) override {
    const OnDevice current(device_);
    return std::make_unique<TransportStep>(spec, id, device_, transport_.get());
  }

  std::vector<double> TimedSwaps(int peer, std::int64_t bytes, int repetitions) override {
    const OnDevice current(device_);
    return cuda::TimedSwaps(transport_.get(), peer, bytes, repetitions, transport_->stream(),
                            Await());
  }

  std::vector<double> TimedMerges(std::int64_t entries, int repetitions) override {
    return cuda::TimedMerges(device_, entries, repetitions, Await());
  }

  std::vector<double> TimedCopies(std::int64_t entries, int repetitions) override {
    return cuda::TimedCopies(device_, entries, repetitions, [this] { transport_->Check(); });
  }

 private:
  AwaitStream Await() {
    return
        [this](cudaStream_t stream, const std::string& what) { transport_->Await(stream, what); };
  }

  const int device_;
  const std::unique_ptr<GpuTransport> transport_;
};

}  // namespace

std::unique_ptr<GpuCollectives> MakeGpuCollectives(int device,
                                                   std::unique_ptr<GpuTransport> transport) {
  return std::make_unique<TransportCollectives>(device, std::move(transport));
}

}  // namespace hvd_sparse::cuda

#include "csrc/exchange/device_link.h"

#include <atomic>
#include <utility>

#include "csrc/base/warn.h"
#include "csrc/collectives/nccl_for.h"

namespace hvd_sparse {

bool DeviceLink::MayBeThere() const {
  const std::lock_guard lock(mutex_);
  return made_ ? made_->network != nullptr : BuiltWithNccl();
}

DeviceNetwork* DeviceLink::NetworkFor(Device device, Communicator* comm) {
  if (!made_ && !device.IsCpu() && BuiltWithNccl()) {
    DeviceConnection made = ConnectDevices(comm, device);
    static std::atomic<bool> said{false};
    const bool is_news = made.network == nullptr && !made.declined;
    if (is_news && comm->Rank() == 0 && !said.exchange(true)) {
      Warn("gtopk between GPUs goes by way of the CPUs, since NCCL is not used: ", made.problem,
           " (HVD_SPARSE_NCCL=auto)");
    }
    const std::lock_guard lock(mutex_);
    made_ = std::move(made);
  }
  return made_ ? made_->network.get() : nullptr;
}

}  // namespace hvd_sparse

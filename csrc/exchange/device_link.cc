#include "csrc/exchange/device_link.h"

#include <atomic>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/devices/devices_for.h"

namespace hvd_sparse {

bool DeviceLink::MayBeThere() const {
  const std::lock_guard lock(mutex_);
  return made_ ? made_->collectives != nullptr : CanConnectDevices();
}

GpuCollectives* DeviceLink::CollectivesFor(Device device, Communicator* comm) {
  if (!made_ && !device.IsCpu() && CanConnectDevices()) {
    DeviceConnection made = ConnectDevices(comm, device);
    static std::atomic<bool> said{false};
    if (!made.warning.empty() && comm->Rank() == 0 && !said.exchange(true)) Warn(made.warning);
    const std::lock_guard lock(mutex_);
    made_ = std::move(made);
  }
  return made_ ? made_->collectives.get() : nullptr;
}

std::string DeviceLink::How() const {
  const std::lock_guard lock(mutex_);
  return made_ ? made_->how : "";
}

GpuCollectives& DeviceLink::Made() const {
  const std::lock_guard lock(mutex_);
  const bool is_there = made_ && made_->collectives != nullptr;
  Require(is_there,
          "no network connects the devices of this exchange's ranks: ConnectDevices tells");
  return *made_->collectives;
}

}  // namespace hvd_sparse

/// The network between the devices of an exchange's ranks, made when a bucket that lies on one is
/// first exchanged, or when somebody measures it. Where all ranks have it, all buckets whose route
/// wants it use it, wherever they lie.

#ifndef HVD_SPARSE_EXCHANGE_DEVICE_LINK_H_
#define HVD_SPARSE_EXCHANGE_DEVICE_LINK_H_

#include <mutex>
#include <optional>

#include "csrc/base/device.h"
#include "csrc/collectives/device_network.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse {

class DeviceLink {
 public:
  /// Whether there is a network, or could be, since nobody has tried yet; for any thread.
  bool MayBeThere() const;

  /// The network, or null where not all ranks have one; what their users asked for and do not get
  /// is said once. Collective at first, for a bucket on `device`; from one thread at a time.
  DeviceNetwork* NetworkFor(Device device, Communicator* comm);

  /// The same where it was made; throws InvalidArgument where it was not.
  DeviceNetwork& Made() const;

 private:
  mutable std::mutex mutex_;
  std::optional<DeviceConnection> made_;  // empty: nobody has tried
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_DEVICE_LINK_H_

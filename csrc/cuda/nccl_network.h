/// NCCL as what connects the devices of an exchange.

#ifndef HVD_SPARSE_CUDA_NCCL_NETWORK_H_
#define HVD_SPARSE_CUDA_NCCL_NETWORK_H_

#include "csrc/collectives/device_network.h"
#include "csrc/comm/communicator.h"

namespace hvd_sparse::cuda {

/// See ConnectDevices (csrc/collectives/nccl_for.h).
DeviceConnection ConnectOverNccl(Communicator* comm, int device);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_NCCL_NETWORK_H_

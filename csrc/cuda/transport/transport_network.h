/// The network that connects the devices of an exchange: gTop-k and whole steps over a transport.

#ifndef HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_NETWORK_H_
#define HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_NETWORK_H_

#include <memory>

#include "csrc/collectives/device_network.h"
#include "csrc/cuda/transport/network_transport.h"

namespace hvd_sparse::cuda {

/// Returns the network over `transport`, which moves memory of `device`.
std::unique_ptr<DeviceNetwork> MakeTransportNetwork(int device,
                                                    std::unique_ptr<NetworkTransport> transport);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_NETWORK_H_

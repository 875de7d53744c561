/// Collectives between the devices of an exchange: gTop-k and whole steps over a transport.

#ifndef HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_COLLECTIVES_H_
#define HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_COLLECTIVES_H_

#include <memory>

#include "csrc/collectives/gpu_collectives.h"
#include "csrc/cuda/transport/gpu_transport.h"

namespace hvd_sparse::cuda {

/// Returns the collectives over `transport`, which moves memory of `device`.
std::unique_ptr<GpuCollectives> MakeGpuCollectives(int device,
                                                   std::unique_ptr<GpuTransport> transport);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_TRANSPORT_TRANSPORT_COLLECTIVES_H_

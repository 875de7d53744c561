/// Which kernels serve a device: the one place that knows what was built in.

#ifndef HVD_SPARSE_KERNELS_KERNELS_FOR_H_
#define HVD_SPARSE_KERNELS_KERNELS_FOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// The kernels of a device. Throws Unavailable if this build has none for it, or the machine no
/// such device; says which.
const Kernels& KernelsFor(Device device);

/// Whether this build has kernels for CUDA.
bool BuiltWithCuda();

/// The name of each CUDA device that can be used here, in CUDA's order. Throws Unavailable, with
/// the reason, where there is none.
std::vector<std::string> CudaDeviceNames();

/// The number of the CUDA device in whose memory an address lies. Throws InvalidArgument if it lies
/// in none, Unavailable where this build has no CUDA.
int CudaDeviceOf(std::uintptr_t address);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_KERNELS_FOR_H_

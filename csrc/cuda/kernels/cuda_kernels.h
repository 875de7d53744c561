/// The kernels of a CUDA device. Residuals and gradients lie there and never leave it; blocks lie
/// in the memory of the CPU, so that code that works with blocks is the same for all devices.
///
/// A call returns when its work is done, except Scatter (see kernels.h). Every thread works on a
/// stream of its own, with scratch memory of its own, so that the selection of one bucket runs
/// beside the exchange of another.

#pragma once

#include <string>
#include <vector>

#include "csrc/kernels/kernels.h"
#include "csrc/wire/dense_work.h"

namespace hvd_sparse {

/// Returns the kernels of a device. Throws Unavailable if there is no such device.
const Kernels& CudaKernels(int device);

/// Returns a bucket's work of dense sums on a device; residuals and gradients lie there, codes and
/// sums are copied through pinned memory, and are added up by the CPU. Throws like CudaKernels.
std::unique_ptr<DenseWork> NewCudaDenseWork(int device);

namespace cuda {

/// Throws Unavailable unless there is such a device.
void CheckDevice(int device);

/// Returns the name of each device. Throws Unavailable, with CUDA's reason, if there is none.
std::vector<std::string> DeviceNames();

/// Returns the device in whose memory an address lies. Throws InvalidArgument if it lies in none.
int DeviceOf(const void* address);

}  // namespace cuda
}  // namespace hvd_sparse

/// The choice of a device's kernels: the only place that depends on the devices built in.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/merge_work.h"
#include "csrc/wire/dense_work.h"

namespace hvd_sparse {

/// Returns the kernels of a device. Throws Unavailable, with the reason, if this build has none for
/// it or the machine has no such device.
const Kernels& KernelsFor(Device device);

/// Returns a bucket's work of dense sums on a device; throws like KernelsFor.
std::unique_ptr<DenseWork> DenseWorkFor(Device device);

/// Returns the work that merges two blocks on a device and keeps the k largest entries. Throws like
/// KernelsFor, and InvalidArgument if it is the CPU.
std::unique_ptr<MergeWork> MergeWorkOn(Device device, const SparseBlock& own,
                                       const SparseBlock& theirs, std::int64_t k);

/// Returns true if this build has CUDA kernels.
bool BuiltWithCuda();

/// Returns the names of the usable CUDA devices, in CUDA's order. Throws Unavailable, with the
/// reason, if there is none.
std::vector<std::string> CudaDeviceNames();

/// Returns the number of the CUDA device in whose memory an address lies. Throws InvalidArgument if
/// it lies in none, Unavailable if this build has no CUDA.
int CudaDeviceOf(std::uintptr_t address);

}  // namespace hvd_sparse

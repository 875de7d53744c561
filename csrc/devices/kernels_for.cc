#include "csrc/devices/kernels_for.h"

#include "csrc/base/error.h"
#ifdef HVD_SPARSE_WITH_CUDA
#include "csrc/cuda/kernels/cuda_kernels.h"
#include "csrc/cuda/kernels/merge_work.h"
#endif

namespace hvd_sparse {
namespace {

void RequireGpu(Device device) {
  Require(!device.IsCpu(), "work for a stream needs a device cuda:0 or the like, got ",
          device.Name());
}

}  // namespace

#ifdef HVD_SPARSE_WITH_CUDA

const Kernels& KernelsFor(Device device) {
  return device.IsCpu() ? CpuKernels() : CudaKernels(device.index);
}

std::unique_ptr<DenseWork> DenseWorkFor(Device device) {
  return device.IsCpu() ? NewCpuDenseWork() : NewCudaDenseWork(device.index);
}

std::unique_ptr<MergeWork> MergeWorkOn(Device device, const SparseBlock& own,
                                       const SparseBlock& theirs, std::int64_t k) {
  RequireGpu(device);
  return cuda::MakeMergeWork(device.index, own, theirs, k);
}

bool BuiltWithCuda() { return true; }

std::vector<std::string> CudaDeviceNames() { return cuda::DeviceNames(); }

int CudaDeviceOf(std::uintptr_t address) {
  return cuda::DeviceOf(reinterpret_cast<const void*>(address));  // NOLINT: it is an address
}

#else

const Kernels& KernelsFor(Device device) {
  if (device.IsCpu()) return CpuKernels();
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA, and gradients on ",
        device.Name(), " need it: build it with HVD_SPARSE_WITH_CUDA=1");
}

std::unique_ptr<DenseWork> DenseWorkFor(Device device) {
  KernelsFor(device);  // throws unless it is the CPU
  return NewCpuDenseWork();
}

std::unique_ptr<MergeWork> MergeWorkOn(Device device, const SparseBlock&, const SparseBlock&,
                                       std::int64_t) {
  RequireGpu(device);
  KernelsFor(device);  // throws
  return nullptr;
}

bool BuiltWithCuda() { return false; }

std::vector<std::string> CudaDeviceNames() {
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA");
}

int CudaDeviceOf(std::uintptr_t) {
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA");
}

#endif

}  // namespace hvd_sparse

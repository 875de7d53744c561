#include "csrc/devices/kernels_for.h"

#include "csrc/base/error.h"
#ifdef HVD_SPARSE_WITH_CUDA
#include "csrc/cuda/kernels/cuda_dense_work.h"
#include "csrc/cuda/kernels/cuda_kernels.h"
#endif

namespace hvd_sparse {

#ifdef HVD_SPARSE_WITH_CUDA

const Kernels& KernelsFor(Device device) {
  return device.IsCpu() ? CpuKernels() : CudaKernels(device.index);
}

std::unique_ptr<DenseWork> DenseWorkFor(Device device) {
  return device.IsCpu() ? NewCpuDenseWork() : NewCudaDenseWork(device.index);
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

bool BuiltWithCuda() { return false; }

std::vector<std::string> CudaDeviceNames() {
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA");
}

int CudaDeviceOf(std::uintptr_t) {
  Throw(ErrorKind::kUnavailable, "this build of hvd_sparse has no CUDA");
}

#endif

}  // namespace hvd_sparse

/// Turns errors of CUDA's runtime into exceptions.

#pragma once

#include <cuda_runtime_api.h>

#include "csrc/base/error.h"

namespace hvd_sparse::cuda {

/// Returns the kind of exception that an error is thrown as: Unavailable if there is no device or
/// no driver for this runtime, OutOfMemory if there is no memory left, else ExchangeFailed: after
/// an error in a kernel this process can no longer use the device.
inline ErrorKind KindOf(cudaError_t status) {
  const bool absent = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver ||
                      status == cudaErrorSystemDriverMismatch || status == cudaErrorInvalidDevice ||
                      status == cudaErrorNoKernelImageForDevice;
  if (absent) return ErrorKind::kUnavailable;
  return status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kExchangeFailed;
}

/// Throws unless a call succeeded; `what` says what it was to do.
inline void Check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, which is reported here
  Throw(KindOf(status), "CUDA could not ", what, ": ", cudaGetErrorString(status), " (",
        cudaGetErrorName(status), ")");
}

/// Throws if a kernel could not be launched; call it right after the launch.
inline void CheckLaunch(const char* what) { Check(cudaGetLastError(), what); }

}  // namespace hvd_sparse::cuda

/// Memory of a GPU for tests, and a check that there is a GPU.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_ARRAY_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_ARRAY_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/types.h"
#include "csrc/cuda/base/check.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {

constexpr Device kGpu{DeviceType::kCuda, 0};

/// Returns why tests that need a GPU cannot run here; empty if they can.
inline std::string NoDevice() {
  try {
    CudaDeviceNames();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A vector on the device, which begins `shift` elements after an aligned address.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values, std::int64_t shift = 0)
      : size_(static_cast<std::int64_t>(values.size())), shift_(shift) {
    cuda::Check(cudaMalloc(&memory_, (values.size() + shift + 1) * sizeof(T)), "allocate");
    Assign(values);
  }
  ~DeviceArray() { (void)cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(memory_) + shift_; }
  Span<T> span() { return {data(), size_}; }

  void Assign(const std::vector<T>& values) {
    if (values.empty()) return;
    cuda::Check(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
                "copy");
    cuda::Check(cudaDeviceSynchronize(), "finish");  // other streams do not wait for the copy
  }

  std::vector<T> Values() {
    cuda::Check(cudaDeviceSynchronize(), "finish");
    std::vector<T> values(static_cast<std::size_t>(size_));
    if (values.empty()) return values;
    cuda::Check(cudaMemcpy(values.data(), data(), values.size() * sizeof(T), cudaMemcpyDefault),
                "copy");
    return values;
  }

 private:
  const std::int64_t size_, shift_;
  void* memory_ = nullptr;
};

/// A fixture whose tests are skipped if there is no device.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NoDevice();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_DEVICE_ARRAY_H_

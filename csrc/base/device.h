/// The device on which gradients lie: the CPU, or a GPU.

#ifndef HVD_SPARSE_BASE_DEVICE_H_
#define HVD_SPARSE_BASE_DEVICE_H_

#include <cstdint>
#include <string>

namespace hvd_sparse {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  ///< number among the devices of its type; 0 for the CPU

  bool IsCpu() const { return type == DeviceType::kCpu; }

  /// The name as frameworks write it: "cpu", "cuda:1".
  std::string Name() const { return IsCpu() ? "cpu" : "cuda:" + std::to_string(index); }
};

/// A framework's stream as a number (a cudaStream_t for CUDA; 0 is the default stream).
using StreamHandle = std::uintptr_t;

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_DEVICE_H_

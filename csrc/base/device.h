/// Where gradients lie: in the memory of the CPU, or in that of a device beside it.

#ifndef HVD_SPARSE_BASE_DEVICE_H_
#define HVD_SPARSE_BASE_DEVICE_H_

#include <cstdint>
#include <string>

namespace hvd_sparse {

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  ///< among the devices of its type; of the CPU, 0

  bool IsCpu() const { return type == DeviceType::kCpu; }

  /// As frameworks write it: "cpu", "cuda:1".
  std::string Name() const { return IsCpu() ? "cpu" : "cuda:" + std::to_string(index); }
};

/// A stream of a framework, as a number (of CUDA: a cudaStream_t; 0 is the default stream).
using StreamHandle = std::uintptr_t;

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_DEVICE_H_

/// One piece of device memory for everything that a collective needs, divided up beforehand.
///
/// Nothing may be allocated while work is given to a stream: that would wait for the device.

#ifndef HVD_SPARSE_CUDA_DEVICE_MEMORY_H_
#define HVD_SPARSE_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/arena.h"
#include "csrc/cuda/device_block.h"

namespace hvd_sparse::cuda {

/// Hands out pieces of memory one behind the other; without memory it only adds up their sizes.
class Divider {
 public:
  explicit Divider(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* Take(std::int64_t count) {
    void* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<T*>(piece);
  }

  DeviceBlock TakeBlock(std::int64_t entries) {
    const std::int64_t capacity = DeviceBlock::CapacityFor(entries);
    char* const memory = Take<char>(DeviceBlock::BytesFor(capacity));
    if (memory == nullptr) return {nullptr, nullptr, nullptr, capacity};
    return DeviceBlock::In(memory, capacity);
  }

  std::size_t used() const { return used_; }

 private:
  static constexpr std::size_t kAlignment = 256;

  char* memory_;
  std::size_t used_ = 0;
};

/// Memory of the current device, which it keeps while it lives.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes)
      : memory_(DeviceMemory::Allocate(bytes > 0 ? bytes : 1)), size_(bytes) {}
  ~DeviceBytes() { DeviceMemory::Free(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* get() const { return memory_; }
  std::size_t size() const { return size_; }

  void Clear(cudaStream_t stream) const {
    Check(cudaMemsetAsync(memory_, 0, size_, stream), "clear memory");
  }

 private:
  void* const memory_;
  const std::size_t size_;
};

/// What `divide(Divider*)` hands out, in memory of its own.
template <typename Divide>
std::size_t SizeOfAll(Divide divide) {
  Divider divider;
  divide(&divider);
  return divider.used();
}

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_DEVICE_MEMORY_H_

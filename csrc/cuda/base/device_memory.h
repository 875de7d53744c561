/// One piece of device memory for everything that a collective needs, divided up beforehand.
///
/// Nothing may be allocated while work is being enqueued: that would wait for the device.

#ifndef HVD_SPARSE_CUDA_BASE_DEVICE_MEMORY_H_
#define HVD_SPARSE_CUDA_BASE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "csrc/cuda/base/arena.h"
#include "csrc/cuda/base/device_block.h"

namespace hvd_sparse::cuda {

/// Hands out pieces of memory one after the other; without memory it only adds up their sizes.
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

/// A piece of memory that is freed with the object.
template <typename Memory>
class OwnedBytes {
 public:
  explicit OwnedBytes(std::size_t bytes)
      : memory_(Memory::Allocate(bytes > 0 ? bytes : 1)), size_(bytes) {}
  ~OwnedBytes() { Memory::Free(memory_); }
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;

  void* get() const { return memory_; }
  std::size_t size() const { return size_; }

  /// Gives the memory up without ever freeing it: something may still use it at any time.
  void Leave() {
    static std::mutex mutex;
    static auto* const left = new std::vector<void*>;
    const std::lock_guard lock(mutex);
    left->push_back(std::exchange(memory_, nullptr));
  }

 private:
  void* memory_;
  const std::size_t size_;
};

/// Pinned memory of the CPU, which the device copies from and to by itself.
using PinnedBytes = OwnedBytes<PinnedMemory>;

/// Memory of the current device.
class DeviceBytes : public OwnedBytes<DeviceMemory> {
 public:
  using OwnedBytes::OwnedBytes;

  void Clear(cudaStream_t stream) const {
    Check(cudaMemsetAsync(get(), 0, size(), stream), "clear memory");
  }
};

/// Returns how many bytes `divide(Divider*)` takes from a Divider.
template <typename Divide>
std::size_t SizeOfAll(Divide divide) {
  Divider divider;
  divide(&divider);
  return divider.used();
}

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_DEVICE_MEMORY_H_

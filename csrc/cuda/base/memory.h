/// Memory of a device, and pinned memory of the CPU: scratch memory that is handed out piece by
/// piece and taken back as a whole, one piece for everything that a collective needs, and arrays.
///
/// Allocating on a device takes as long as a pass over a large gradient, so memory is kept: after
/// the first steps nothing is allocated any more. Nothing may be allocated while work is being
/// enqueued, either: that would wait for the device.

#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/stream.h"

namespace hvd_sparse::cuda {

/// Memory of the device.
struct DeviceMemory {
  static void* Allocate(std::size_t bytes) {
    void* memory = nullptr;
    Check(cudaMalloc(&memory, bytes), "allocate scratch memory on the device");
    return memory;
  }
  static void Free(void* memory) { (void)cudaFree(memory); }
};

/// Pinned memory of the CPU: the device copies to and from it by itself, at full speed.
struct PinnedMemory {
  static void* Allocate(std::size_t bytes) {
    void* memory = nullptr;
    Check(cudaMallocHost(&memory, bytes), "allocate pinned memory");
    return memory;
  }
  static void Free(void* memory) { (void)cudaFreeHost(memory); }
};

template <typename Memory>
class Arena {
 public:
  Arena() = default;
  ~Arena() { FreeAll(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Returns room for `count` elements, valid until Reset.
  template <typename T>
  T* Take(std::int64_t count) {
    return static_cast<T*>(TakeBytes(static_cast<std::size_t>(count) * sizeof(T)));
  }

  /// Bytes handed out since the last Reset.
  std::size_t used() const { return used_; }

  /// Takes everything back; no work that uses it may be in flight.
  void Reset() {
    const std::size_t total = used_;
    used_ = filled_ = 0;
    if (chunks_.size() <= 1) return;
    FreeAll();
    Add(total);  // so that one chunk is enough next time
  }

 private:
  static constexpr std::size_t kAlignment = 256, kLeast = std::size_t{1} << 20;

  struct Chunk {
    char* memory;
    std::size_t size;
  };

  void* TakeBytes(std::size_t bytes) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (chunks_.empty() || chunks_.back().size - filled_ < rounded) Add(rounded);
    char* const memory = chunks_.back().memory + filled_;
    filled_ += rounded;
    used_ += rounded;
    return memory;
  }

  void Add(std::size_t bytes) {
    // Half as much again: the next step may need a little more.
    const std::size_t size = std::max(kLeast, bytes + bytes / 2);
    chunks_.reserve(chunks_.size() + 1);
    chunks_.push_back({static_cast<char*>(Memory::Allocate(size)), size});
    filled_ = 0;
  }

  void FreeAll() {
    for (const Chunk& chunk : chunks_) Memory::Free(chunk.memory);
    chunks_.clear();
    filled_ = 0;
  }

  std::vector<Chunk> chunks_;  // memory is taken from the last one
  std::size_t filled_ = 0;     // bytes taken from the last one
  std::size_t used_ = 0;       // bytes taken from all
};

// ---- One piece of memory, divided up beforehand -------------------------------------------------

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

/// Returns how many bytes `divide(Divider*)` takes from a Divider.
template <typename Divide>
std::size_t SizeOfAll(Divide divide) {
  Divider divider;
  divide(&divider);
  return divider.used();
}

/// A piece of memory that is freed with the object.
template <typename Memory>
class OwnedBytes {
 public:
  explicit OwnedBytes(std::size_t bytes)
      : memory_(Memory::Allocate(bytes > 0 ? bytes : 1)), size_(bytes) {}

  /// Makes as much memory as `divide(Divider*)` takes, and divides it.
  template <typename Divide, typename = std::enable_if_t<!std::is_integral_v<Divide>>>
  explicit OwnedBytes(Divide divide) : OwnedBytes(SizeOfAll(divide)) {
    Divider divider(get());
    divide(&divider);
  }

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
    cuda::Clear(static_cast<char*>(get()), static_cast<std::int64_t>(size()), stream);
  }
};

// ---- Arrays in pinned memory --------------------------------------------------------------------

/// An array of `size` elements, uninitialised. All copies must have ended before it is freed.
template <typename T>
class PinnedArray {
 public:
  explicit PinnedArray(std::int64_t size)
      : data_(static_cast<T*>(PinnedMemory::Allocate(BytesOf(size > 0 ? size : 1)))), size_(size) {}
  ~PinnedArray() { PinnedMemory::Free(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;

  T& operator[](std::int64_t i) { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T* data() { return data_; }
  std::int64_t size() const { return size_; }

  /// FetchFrom enqueues the copy of all elements from the device, SendTo the one to it.
  void FetchFrom(const T* device, cudaStream_t stream) { Copy(device, size_, data_, stream); }
  void SendTo(T* device, cudaStream_t stream) const { Copy(data_, size_, device, stream); }

 private:
  static std::size_t BytesOf(std::int64_t size) {
    return static_cast<std::size_t>(size) * sizeof(T);
  }

  T* const data_;
  const std::int64_t size_;
};

}  // namespace hvd_sparse::cuda

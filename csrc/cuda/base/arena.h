/// Scratch memory that is handed out piece by piece and taken back as a whole.
///
/// Allocating on a device takes as long as a pass over a large gradient, so memory is kept: after
/// the first steps nothing is allocated any more.

#ifndef HVD_SPARSE_CUDA_BASE_ARENA_H_
#define HVD_SPARSE_CUDA_BASE_ARENA_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "csrc/cuda/base/check.h"

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

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_ARENA_H_

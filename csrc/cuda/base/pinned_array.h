/// An array in pinned memory of the CPU, which a device copies to and from by itself.

#ifndef HVD_SPARSE_CUDA_BASE_PINNED_ARRAY_H_
#define HVD_SPARSE_CUDA_BASE_PINNED_ARRAY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/base/arena.h"

namespace hvd_sparse::cuda {

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
  void FetchFrom(const T* device, cudaStream_t stream) {
    Copy(data_, device, cudaMemcpyDeviceToHost, stream);
  }
  void SendTo(T* device, cudaStream_t stream) const {
    Copy(device, data_, cudaMemcpyHostToDevice, stream);
  }

 private:
  static std::size_t BytesOf(std::int64_t size) {
    return static_cast<std::size_t>(size) * sizeof(T);
  }
  void Copy(T* to, const T* from, cudaMemcpyKind kind, cudaStream_t stream) const {
    if (size_ == 0) return;
    Check(cudaMemcpyAsync(to, from, BytesOf(size_), kind, stream), "copy memory");
  }

  T* const data_;
  const std::int64_t size_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_PINNED_ARRAY_H_

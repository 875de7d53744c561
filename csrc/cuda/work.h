/// A call's work on a device: this thread's stream there, scratch memory, and copies by way of
/// pinned memory.

#ifndef HVD_SPARSE_CUDA_WORK_H_
#define HVD_SPARSE_CUDA_WORK_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "csrc/cuda/arena.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {

/// What a thread keeps of a device from call to call.
struct Workspace {
  Stream stream;
  Arena<DeviceMemory> scratch;
  Arena<PinnedMemory> staging;
  bool busy = false;  // a call has ended, and its work may be under way

  ~Workspace() { (void)cudaStreamSynchronize(stream.get()); }
};

/// Pointers that it hands out are good until it is gone, or, after Leave, as long as the work needs
/// them.
class Work {
 public:
  explicit Work(int device);

  /// Waits for what was not finished: a call that fails half-way leaves no copy under way.
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// To be given work, which Finish, NoteDone or Leave must follow.
  cudaStream_t stream() {
    finished_ = false;
    return workspace_.stream.get();
  }

  /// Memory of the device for `count` elements, not written yet.
  template <typename T>
  T* Scratch(std::int64_t count) {
    return workspace_.scratch.Take<T>(count);
  }

  /// The same, of zeros.
  template <typename T>
  T* Zeros(std::int64_t count) {
    T* const memory = Scratch<T>(count);
    Check(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(count) * sizeof(T), stream()),
          "clear memory");
    return memory;
  }

  /// Pinned memory for `count` elements, for Upload and Fetch. To be had before anything is
  /// changed: there may be none.
  template <typename T>
  T* Staged(std::int64_t count) {
    return workspace_.staging.Take<T>(count);
  }

  /// Copies what lies in pinned memory to the device; returns where it lies there.
  template <typename T>
  T* Upload(const T* staged, std::int64_t count) {
    T* const memory = Scratch<T>(count);
    Copy(memory, staged, count, cudaMemcpyHostToDevice);
    return memory;
  }

  /// The same of any memory of the CPU.
  template <typename T>
  T* Send(const T* from, std::int64_t count) {
    T* const staged = Staged<T>(count);
    std::copy_n(from, count, staged);
    return Upload(staged, count);
  }

  /// Copies from the device to pinned memory, which can be read after Finish.
  template <typename T>
  void Fetch(const T* from, std::int64_t count, T* staged) {
    Copy(staged, from, count, cudaMemcpyDeviceToHost);
  }

  /// Waits until all is done.
  void Finish();

  /// All is done: somebody has waited for the stream.
  void NoteDone();

  /// Lets the work go on by itself.
  void Leave() { left_ = true; }

 private:
  template <typename T>
  void Copy(T* to, const T* from, std::int64_t count, cudaMemcpyKind kind) {
    if (count == 0) return;
    Check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T), kind, stream()),
          "copy memory");
  }

  const OnDevice current_;
  Workspace& workspace_;
  bool finished_ = true, left_ = false;
};

/// This thread's stream of a device.
const Stream& OwnStream(int device);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_WORK_H_

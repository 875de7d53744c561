/// A call's work on a device: this thread's stream there, scratch memory, and copies through pinned
/// memory.

#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/stream.h"

namespace hvd_sparse::cuda {

/// A thread's stream and memory on one device, kept from call to call.
struct Workspace {
  Stream stream;
  Arena<DeviceMemory> scratch;
  Arena<PinnedMemory> staging;
  Arena<DeviceMemory> kept;
  bool busy = false;  // a call has returned, and its work may still be in flight

  ~Workspace() { (void)cudaStreamSynchronize(stream.get()); }
};

/// The work of one call. Pointers that it hands out are valid until it is destroyed or, after
/// Leave, until the work is done.
class Work {
 public:
  explicit Work(int device);

  /// Waits for unfinished work, unless Leave was called: a call that fails half-way leaves no copy
  /// in flight.
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// The stream to enqueue work on; Finish, NoteDone or Leave must follow.
  cudaStream_t stream() {
    finished_ = false;
    return workspace_.stream.get();
  }

  /// Returns uninitialised device memory for `count` elements.
  template <typename T>
  T* Scratch(std::int64_t count) {
    return workspace_.scratch.Take<T>(count);
  }

  /// Like Scratch, but the stream zeroes the memory.
  template <typename T>
  T* Zeros(std::int64_t count) {
    T* const memory = Scratch<T>(count);
    Clear(memory, count, stream());
    return memory;
  }

  /// Returns the thread's memory for data that outlives a call. No call resets it: its user does.
  Arena<DeviceMemory>* KeptMemory() { return &workspace_.kept; }

  /// Returns pinned memory for `count` elements, for Upload and Fetch. Call it before anything is
  /// changed: the allocation may fail.
  template <typename T>
  T* Staged(std::int64_t count) {
    return workspace_.staging.Take<T>(count);
  }

  /// Copies elements from pinned memory to the device, to memory there.
  template <typename T>
  void Upload(const T* staged, std::int64_t count, T* memory) {
    Copy(staged, count, memory, stream());
  }

  /// Copies elements from pinned memory to the device; returns their address there.
  template <typename T>
  T* Upload(const T* staged, std::int64_t count) {
    T* const memory = Scratch<T>(count);
    Upload(staged, count, memory);
    return memory;
  }

  /// Like Upload, but from any memory of the CPU.
  template <typename T>
  T* Send(const T* from, std::int64_t count) {
    T* const staged = Staged<T>(count);
    std::copy_n(from, count, staged);
    return Upload(staged, count);
  }

  /// Copies from the device to pinned memory, which can be read after Finish.
  template <typename T>
  void Fetch(const T* from, std::int64_t count, T* staged) {
    Copy(from, count, staged, stream());
  }

  /// Waits until all work is done.
  void Finish();

  /// Notes that all work is done: the caller has waited for the stream.
  void NoteDone();

  /// Lets the work go on after this object is destroyed.
  void Leave() { left_ = true; }

 private:
  const OnDevice current_;
  Workspace& workspace_;
  bool finished_ = true, left_ = false;
};

/// Returns this thread's stream on a device.
const Stream& OwnStream(int device);

}  // namespace hvd_sparse::cuda

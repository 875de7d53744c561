/// Streams, events and the current device, as objects that clean up.
///
/// Destructors ignore errors: at the end of a process CUDA may be gone before them.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/cuda/base/check.h"

namespace hvd_sparse::cuda {

/// Makes a device this thread's current one, and restores the one before when it is destroyed.
///
/// Restoring a device that nobody has used takes half a gigabyte there for nothing. So the threads
/// of an exchange, which start on device 0 like all others, first switch to theirs for good
/// (StayOn).
class OnDevice {
 public:
  explicit OnDevice(int device) : device_(device) {
    Check(cudaGetDevice(&before_), "find the current device");
    if (before_ != device_) Check(cudaSetDevice(device_), "use a device");
  }
  ~OnDevice() {
    if (before_ != device_) (void)cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const int device_;
  int before_ = 0;
};

/// Makes a device this thread's current one for good, and keeps the thread's calls from breaking a
/// CUDA graph that another thread captures; for threads of an exchange. Frameworks capture with
/// cudaStreamCaptureModeGlobal, which forbids calls that are unsafe in a capture to all other
/// threads, except those that have switched to the thread-local mode.
inline void StayOn(int device) {
  Check(cudaSetDevice(device), "use a device");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  Check(cudaThreadExchangeStreamCaptureMode(&mode), "keep out of captures");
}

/// A stream of the current device. It does not wait for the default stream, and its short kernels
/// take priority over the long ones of backpropagation.
class Stream {
 public:
  Stream() {
    int least = 0, greatest = 0;
    Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "ask for priorities");
    Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "make a stream");
  }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void Synchronize() const { Check(cudaStreamSynchronize(stream_), "finish its work"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Frameworks pass streams as numbers.
inline cudaStream_t StreamOf(StreamHandle handle) {
  return reinterpret_cast<cudaStream_t>(handle);  // NOLINT
}
inline StreamHandle HandleOf(cudaStream_t stream) {
  return reinterpret_cast<StreamHandle>(stream);  // NOLINT
}

/// Returns true if a stream's work is being captured into a CUDA graph.
inline bool IsCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream, &status), "ask whether a stream is being captured");
  return status != cudaStreamCaptureStatusNone;
}

/// Enqueues the copy of `count` elements.
template <typename T>
void Copy(const T* from, std::int64_t count, T* to, cudaStream_t stream) {
  if (count == 0) return;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy memory");
}

/// Enqueues the clearing of `count` elements.
template <typename T>
void Clear(T* memory, std::int64_t count, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
  Check(cudaMemsetAsync(memory, 0, bytes, stream), "clear memory");
}

/// Says whether an event records the time at which it is passed, which costs a little.
enum class Timing { kNone, kKept };

/// A point in the work of a stream of the current device.
class Event {
 public:
  explicit Event(Timing timing = Timing::kNone) {
    const unsigned flags = timing == Timing::kKept ? cudaEventDefault : cudaEventDisableTiming;
    Check(cudaEventCreateWithFlags(&event_, flags), "make an event");
  }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(cudaStream_t stream) { Check(cudaEventRecord(event_, stream), "record an event"); }

  /// Makes work enqueued on `stream` from now on wait for this point; the CPU does not wait.
  void MakeStreamFollow(cudaStream_t stream) const {
    Check(cudaStreamWaitEvent(stream, event_, 0), "let a stream wait");
  }

  void Wait() const { Check(cudaEventSynchronize(event_), "wait for an event"); }

  /// Returns true if the work before this point is done.
  bool Passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // not an error: CheckLaunch must not see it
      return false;
    }
    Check(status, "ask for an event");
    return true;
  }

  /// Returns the seconds from one point to another by the device's clock; both events have
  /// Timing::kKept.
  static double SecondsBetween(const Event& from, const Event& to) {
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, from.event_, to.event_), "compare two events");
    return 1e-3 * double{milliseconds};
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace hvd_sparse::cuda

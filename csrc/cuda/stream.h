/// Streams, events and the current device, as objects that clean up.
///
/// Destructors ignore errors: at the end of a process CUDA may be gone before them.

#ifndef HVD_SPARSE_CUDA_STREAM_H_
#define HVD_SPARSE_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include "csrc/cuda/check.h"

namespace hvd_sparse::cuda {

/// While it lives, calls of this thread go to a device; then to the one before.
///
/// Going back to a device that nobody has used takes half a gigabyte there, for nothing: so threads
/// of the exchange, which begin at device 0 like all others, go to theirs for good first (StayOn).
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

/// For threads of an exchange: the calls of this thread go to a device for good, and break no CUDA
/// graph that another thread captures meanwhile. Frameworks capture with
/// cudaStreamCaptureModeGlobal, which forbids all other threads what must not happen in a capture;
/// but not those that say that they capture nothing of their own.
inline void StayOn(int device) {
  Check(cudaSetDevice(device), "use a device");
  cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
  Check(cudaThreadExchangeStreamCaptureMode(&mode), "keep out of captures");
}

/// A stream of the current device. It does not wait for the default stream, and its short kernels
/// go before the long ones of backpropagation.
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

/// Whether an event knows when it was passed, which costs a little.
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

  /// Work that `stream` is given from now on begins after this point; nobody is held up here.
  void LetFollow(cudaStream_t stream) const {
    Check(cudaStreamWaitEvent(stream, event_, 0), "let a stream wait");
  }

  void Wait() const { Check(cudaEventSynchronize(event_), "wait for an event"); }

  /// Whether that work is done.
  bool Passed() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // no error, and the next launch must not be taken to have failed
      return false;
    }
    Check(status, "ask for an event");
    return true;
  }

  /// Seconds of the device from one point to another, where both know when they were passed.
  static double SecondsBetween(const Event& from, const Event& to) {
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, from.event_, to.event_), "compare two events");
    return 1e-3 * double{milliseconds};
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STREAM_H_

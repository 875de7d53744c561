/// CUDA's runtime, as far as csrc/cuda/ calls it, for a device that is plain memory of the CPU.
///
/// It replaces NVIDIA's header when csrc/cuda/ is compiled for tests without a GPU. There is one
/// device, which has done its work when a call returns: a stream is only a name, and an event a
/// time, unless a test says otherwise (hvd_sparse::emulation, below).

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_CUDA_RUNTIME_API_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_CUDA_RUNTIME_API_H_

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/csrc/emulation/order.h"

enum cudaError_t {
  cudaSuccess,
  cudaErrorInsufficientDriver,
  cudaErrorInvalidConfiguration,
  cudaErrorInvalidDevice,
  cudaErrorInvalidValue,
  cudaErrorMemoryAllocation,
  cudaErrorNoDevice,
  cudaErrorNoKernelImageForDevice,
  cudaErrorNotReady,
  cudaErrorStreamCaptureUnsupported,
  cudaErrorSystemDriverMismatch,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
};
struct cudaPointerAttributes {
  cudaMemoryType type;
  int device;
};

constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2;

struct CUstream_st {};
struct CUevent_st {
  std::chrono::steady_clock::time_point passed;
};

/// Counts of this thread's calls to the device.
struct EmulatedCalls {
  int launches = 0, clears = 0, copies = 0, waits = 0, allocations = 0, frees = 0;
};
inline thread_local EmulatedCalls emulated_calls;

namespace hvd_sparse::emulation {
inline std::atomic<bool (*)()> device_is_idle{nullptr};  ///< null: idle; false: no event passes
inline std::atomic<bool> streams_capture{false};         ///< all of them, into a graph
inline std::atomic<bool> another_captures{false};    ///< a thread, in cudaStreamCaptureModeGlobal
inline std::atomic<bool (*)()> has_memory{nullptr};  ///< asked at each allocation; null: always

/// Pinned memory of this thread is taken from here on, allocations right behind each other, as a
/// driver may place them; null: from anywhere.
inline thread_local char* pinned_from = nullptr;

/// Returns true unless an allocation ends within these bytes. A copy of others is an error.
bool LiesInOnePiece(const void* begin, std::size_t bytes);

/// Called when an event is recorded on a stream, and when a stream is made to wait for one.
inline std::atomic<void (*)(cudaStream_t, cudaEvent_t, bool waits)> at_event{nullptr};
inline void Met(cudaStream_t stream, cudaEvent_t event, bool waits) {
  if (void (*const seen)(cudaStream_t, cudaEvent_t, bool) = at_event) seen(stream, event, waits);
}

/// Called when a stream is given a kernel, a copy or memory to fill.
inline std::atomic<void (*)(cudaStream_t)> at_work{nullptr};
inline void Given(cudaStream_t stream) {
  if (void (*const seen)(cudaStream_t) = at_work) seen(stream);
}
}  // namespace hvd_sparse::emulation

/// The capture mode of this thread. CUDA forbids more calls than the emulation does.
inline thread_local cudaStreamCaptureMode emulated_capture_mode = cudaStreamCaptureModeGlobal;
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, emulated_capture_mode);
  return cudaSuccess;
}
namespace hvd_sparse::emulation {
inline bool BreaksACapture() {
  return another_captures && emulated_capture_mode == cudaStreamCaptureModeGlobal;
}
}  // namespace hvd_sparse::emulation

inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulated"; }

/// The result of this thread's next cudaGetLastError.
inline thread_local cudaError_t emulated_error = cudaSuccess;
inline cudaError_t cudaGetLastError() {
  const cudaError_t error = emulated_error;
  emulated_error = cudaSuccess;
  return error;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  std::strcpy(properties->name, "emulated");
  std::memset(properties->uuid.bytes, 0x1f, sizeof(properties->uuid.bytes));
  return cudaSuccess;
}
/// Treats all memory as the device's, except a null pointer.
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                            const void* address) {
  const bool somewhere = address != nullptr;
  *attributes = {somewhere ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, 0};
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
  if (hvd_sparse::emulation::BreaksACapture()) return cudaErrorStreamCaptureUnsupported;
  ++emulated_calls.waits;
  hvd_sparse::emulation::FollowDevice();
  return cudaSuccess;
}

inline cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  *stream = new CUstream_st;
  hvd_sparse::emulation::MakeStream(*stream, flags != cudaStreamNonBlocking);
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  hvd_sparse::emulation::ForgetStream(stream);
  delete stream;
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (hvd_sparse::emulation::BreaksACapture()) return cudaErrorStreamCaptureUnsupported;
  ++emulated_calls.waits;
  bool (*const idle)() = hvd_sparse::emulation::device_is_idle;
  while (idle != nullptr && !idle()) std::this_thread::yield();
  hvd_sparse::emulation::Follow(stream);
  return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  hvd_sparse::emulation::Met(stream, event, true);
  hvd_sparse::emulation::MakeStreamFollow(stream, event);
  return cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  hvd_sparse::emulation::ForgetEvent(event);
  delete event;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  hvd_sparse::emulation::Met(stream, event, false);
  hvd_sparse::emulation::RecordEvent(event, stream);
  event->passed = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const std::chrono::duration<float, std::milli> between = to->passed - from->passed;
  *milliseconds = between.count();
  return cudaSuccess;
}
/// An event that has not passed sets the last error, too: callers must not rely on a clean one.
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (hvd_sparse::emulation::BreaksACapture()) return cudaErrorStreamCaptureUnsupported;
  bool (*const idle)() = hvd_sparse::emulation::device_is_idle;
  if (idle != nullptr && !idle()) return emulated_error = cudaErrorNotReady;
  hvd_sparse::emulation::Follow(event);
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (hvd_sparse::emulation::BreaksACapture()) return cudaErrorStreamCaptureUnsupported;
  ++emulated_calls.waits;
  hvd_sparse::emulation::Follow(event);
  return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = hvd_sparse::emulation::streams_capture ? cudaStreamCaptureStatusActive
                                                   : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

// Memory calls, defined in memory.cc.
cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);

/// Waits for the device, like CUDA's.
cudaError_t cudaFree(void* memory);
/// Does not wait: CUDA does not document that it does.
cudaError_t cudaFreeHost(void* memory);

/// Orders the CPU after the copy, except for copies to the device from its own or plain memory. As
/// in CUDA, the call has then read plain memory, and orders nothing else.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  hvd_sparse::emulation::Given(stream);
  ++emulated_calls.copies;
  for (const void* begin : {static_cast<const void*>(to), from}) {
    if (!hvd_sparse::emulation::LiesInOnePiece(begin, bytes)) return cudaErrorInvalidValue;
  }
  hvd_sparse::emulation::Copy(stream, to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes,
                                   cudaStream_t stream) {
  hvd_sparse::emulation::Given(stream);
  ++emulated_calls.clears;
  hvd_sparse::emulation::Fill(stream, memory, value, bytes);
  return cudaSuccess;
}

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_CUDA_RUNTIME_API_H_

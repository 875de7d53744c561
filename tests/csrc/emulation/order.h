/// The order of the emulated device's work, for ThreadSanitizer; without it nothing happens here.
///
/// The emulation does all work at once. A device may do it later, concurrently with other work, in
/// any order that streams, events and barriers allow, and only those order it here: to
/// ThreadSanitizer a stream is a thread, and so is each thread of a kernel. It therefore reports
///
///   * a missing barrier in a kernel, and accesses of several blocks to the same memory. Work is
///     ordered by the launch, __syncthreads, and __threadfence on both sides (fences.h), but not by
///     a shuffle, a vote or an atomic operation;
///   * streams that access the same memory without an event between them;
///   * accesses of the CPU to memory that a stream may still use.
///
/// Volatile accesses of kernels are taken for atomic ones, as in PTX.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

namespace hvd_sparse::emulation {

/// Makes this thread of the CPU act as a stream while it lives: its work follows the stream's
/// earlier work and the thread's own. One at a time.
class Working {
 public:
  explicit Working(cudaStream_t stream);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  void* const cpu_;
};

/// Work on a stream; not inline, since ThreadSanitizer would not see it there.
void Copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes);
void Fill(cudaStream_t stream, void* memory, int value, std::size_t bytes);

/// Streams made without cudaStreamNonBlocking and the default stream wait for each other.
void MakeStream(cudaStream_t stream, bool blocks);
void ForgetStream(cudaStream_t stream);

void RecordEvent(cudaEvent_t event, cudaStream_t stream);
void MakeStreamFollow(cudaStream_t stream, cudaEvent_t event);
void ForgetEvent(cudaEvent_t event);

/// Orders this thread of the CPU after an event, a stream, or all streams.
void Follow(cudaEvent_t event);
void Follow(cudaStream_t stream);
void FollowDevice();

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_

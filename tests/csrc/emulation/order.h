/// What the emulated device does before what, for ThreadSanitizer; without it nothing happens here.
///
/// The emulation does all that it is given at once. A device may do it later, beside other work, in
/// any order that streams, events and barriers allow, and only those order it here: a stream is a
/// thread to ThreadSanitizer, and so is each thread of a kernel. So it reports
///
///   * a barrier that a kernel lacks, and blocks of a kernel that meet in memory: the launch orders
///     what they do, and __syncthreads, and __threadfence on both sides (fences.h), but no shuffle,
///     vote or atomic operation;
///   * streams that meet in memory without an event between them;
///   * what the CPU does with memory that a stream may still use.
///
/// Volatile accesses of kernels are taken for atomic ones, as PTX takes them.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
using cudaEvent_t = struct CUevent_st*;

namespace hvd_sparse::emulation {

/// While it lives, this thread of the CPU is a stream: what it does is behind all that the stream
/// was given before, and behind what the thread itself has done. One at a time.
class Working {
 public:
  explicit Working(cudaStream_t stream);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  void* const cpu_;
};

/// What a stream is given to do; never compiled in line, where ThreadSanitizer does not see it.
void Copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes);
void Fill(cudaStream_t stream, void* memory, int value, std::size_t bytes);

/// Streams that were made without cudaStreamNonBlocking and the default stream wait for each other.
void MakeStream(cudaStream_t stream, bool blocks);
void ForgetStream(cudaStream_t stream);

void RecordEvent(cudaEvent_t event, cudaStream_t stream);
void LetFollow(cudaStream_t stream, cudaEvent_t event);
void ForgetEvent(cudaEvent_t event);

/// What follows on this thread of the CPU is behind an event, a stream, all streams.
void Follow(cudaEvent_t event);
void Follow(cudaStream_t stream);
void FollowDevice();

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_ORDER_H_

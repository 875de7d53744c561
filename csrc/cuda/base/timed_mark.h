/// A point in a stream that knows when it was passed; contract in csrc/kernels/timed_mark.h.

#ifndef HVD_SPARSE_CUDA_BASE_TIMED_MARK_H_
#define HVD_SPARSE_CUDA_BASE_TIMED_MARK_H_

#include <memory>

#include "csrc/cuda/base/stream.h"
#include "csrc/kernels/timed_mark.h"

namespace hvd_sparse::cuda {

class CudaTimedMark final : public TimedMark {
 public:
  explicit CudaTimedMark(int device) : device_(device) {}

  void Record(StreamHandle stream) override {
    Check(cudaSetDevice(device_), "use a device");
    if (event_ == nullptr) event_ = std::make_unique<Event>(Timing::kKept);
    event_->Record(reinterpret_cast<cudaStream_t>(stream));  // NOLINT: streams come as numbers
  }
  bool Passed() const override { return event_->Passed(); }
  double SecondsUntil(const TimedMark& later) const override {
    return Event::SecondsBetween(*event_, *static_cast<const CudaTimedMark&>(later).event_);
  }

 private:
  const int device_;
  std::unique_ptr<Event> event_;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_TIMED_MARK_H_

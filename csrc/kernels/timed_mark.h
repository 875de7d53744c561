/// Points in the work of a device, and the time between them as the device itself tells it.

#ifndef HVD_SPARSE_KERNELS_TIMED_MARK_H_
#define HVD_SPARSE_KERNELS_TIMED_MARK_H_

#include "csrc/base/clock.h"
#include "csrc/base/device.h"

namespace hvd_sparse {

class TimedMark {
 public:
  virtual ~TimedMark() = default;

  /// From now on behind all work that a stream has been given so far. Nobody waits. The device
  /// becomes the calling thread's current one, as with Kernels::Follow.
  virtual void Record(StreamHandle stream) = 0;

  /// Whether the device has come there.
  virtual bool Passed() const = 0;

  /// Seconds from here to another mark of the device, when both have passed.
  virtual double SecondsUntil(const TimedMark& later) const = 0;
};

/// Of the CPU, which has done what it was given.
class CpuTimedMark final : public TimedMark {
 public:
  void Record(StreamHandle /*stream*/) override { seconds_ = SteadySeconds(); }
  bool Passed() const override { return true; }
  double SecondsUntil(const TimedMark& later) const override {
    return static_cast<const CpuTimedMark&>(later).seconds_ - seconds_;
  }

 private:
  double seconds_ = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_TIMED_MARK_H_

/// Points in the work of a device, and the time between them as measured by the device.

#pragma once

#include "csrc/base/process.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

class TimedMark {
 public:
  virtual ~TimedMark() = default;

  /// Moves the mark behind all work enqueued on a stream so far. Does not wait. The device becomes
  /// the calling thread's current one, as with Kernels::Follow.
  virtual void Record(StreamHandle stream) = 0;

  /// Returns true if the device has passed the mark.
  virtual bool Passed() const = 0;

  /// Returns the seconds from this mark to a later one of the device; both must have passed.
  virtual double SecondsUntil(const TimedMark& later) const = 0;
};

/// A mark of the CPU, whose work is done by the time the mark is recorded.
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

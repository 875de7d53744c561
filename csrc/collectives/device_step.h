/// A whole step of a bucket on a device: select, gTop-k, settle and scatter, enqueued on two
/// streams.
///
///     select      on a stream that waits for gradients only
///     exchange    the rest, on a stream that waits for other ranks, in the order they agree on
///
/// An event orders the two parts of a bucket's step, so its selection runs while the exchange of
/// the previous bucket is in progress. The CPU reads the outcome of a step once, after its end.
///
/// Thresholds belong to the framework, as on every other route (csrc/exchange/bucket_step.h):
/// between two steps its array of them, in CPU memory, is authoritative. The device works on a
/// copy, which is updated if the framework passes other values than it last received, and copied
/// back when a step has arrived.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/base/verdict.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

/// The outcome of a step; times as in RoundTimes, from the device's marks.
struct DeviceStepReport {
  Verdict verdict;      ///< the same on all ranks
  Verdict own_verdict;  ///< on this rank's gradient alone
  std::int64_t selected = 0, reduced = 0;
  double begin = 0, select_end = 0, end = 0;
  RoundTimes messages;  ///< from the exchange's turn to its last message; a merge follows
};

/// The steps of one bucket. Keeps device memory from step to step; the destructor waits for the
/// device.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  /// The streams on which Select and Exchange enqueue work; all buckets of a network share them.
  virtual StreamHandle select_stream() const = 0;
  virtual StreamHandle exchange_stream() const = 0;

  /// Enqueues error feedback and selection, and returns. Gradients, residual and velocity lie on
  /// the device; the states lie in CPU memory, are read now and written when the step arrives.
  virtual void Select(const Launch& launch) = 0;

  /// Enqueues the rest of that step and returns: without waiting for the device, or, where the CPU
  /// moves the messages, after the last of them. Throws the error that ended the exchange
  /// meanwhile. Only one thread at a time may call it for all buckets of a network; any thread may
  /// call Select.
  virtual void Exchange() = 0;

  /// Waits at most `seconds` for the end of the step; returns true if it has ended. Throws the
  /// error that ended the exchange, and ExchangeFailed for data that no rank of this exchange can
  /// have sent.
  virtual bool Arrived(double seconds) = 0;

  /// The report of the step that arrived last.
  virtual const DeviceStepReport& report() const = 0;

  /// Waits for the device, then puts back the residual entries that the last step took and the
  /// velocities that it masked: both are then what error feedback made them, bit for bit. Works
  /// whether the step arrived, was refused on the device or stopped anywhere in between, and
  /// whatever has been received.
  virtual void PutBack() = 0;
};

}  // namespace hvd_sparse

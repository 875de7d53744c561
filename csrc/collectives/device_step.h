/// A whole step of a bucket on a device: select, gTop-k, settle and scatter, given to two streams.
///
///     select      on one that waits for gradients, and for nobody else
///     exchange    all the rest, on one that waits for other ranks, in the order they agree on
///
/// Between the two of a bucket there is an event, so a selection runs while the exchange of the
/// bucket before is under way. The CPU learns what became of a step once, behind the end of it.
///
/// Thresholds belong to the framework, as on every other route (csrc/exchange/bucket.h): its array
/// of them, in memory of the CPU, is what counts between two steps. The device works on a copy,
/// which is renewed where the framework brings another than it was given last, and is copied back
/// when a step has arrived.

#ifndef HVD_SPARSE_COLLECTIVES_DEVICE_STEP_H_
#define HVD_SPARSE_COLLECTIVES_DEVICE_STEP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// What never changes about a bucket; the same on all ranks. See BucketSpec.
struct DeviceStepSpec {
  std::string what;  ///< the bucket, for warnings and errors
  std::uint32_t id = 0;
  std::vector<std::int64_t> gradient_numels, segment_numels, max_ks;
  double slack = 1;     ///< see csrc/collectives/gtopk.cc
  double refresh = 32;  ///< see csrc/sparsifiers/gaussian.cc
};

/// What a step brings, see Launch. Gradients, residual and velocity lie on the device; all memory
/// outlives the step.
struct DeviceStepLaunch {
  Span<float> residual, velocity;
  const std::vector<GradView>& gradients;
  const std::vector<float>& decays;
  const std::vector<std::int64_t>& ks;
  Span<SelectionState> states;  ///< in memory of the CPU: read now, written when it has arrived
  float momentum = 0, scale = 1, output_scale = 1;
};

/// What became of a step; times as in RoundTimes, by the device's marks.
struct DeviceStepReport {
  std::int32_t bad_rank = kNoRank;      ///< as in BlockHeader, the same on all ranks
  std::int32_t own_bad_rank = kNoRank;  ///< this rank, if its gradient is not finite
  std::int64_t selected = 0, reduced = 0;
  double begin = 0, select_end = 0, end = 0;
  RoundTimes messages;  ///< from their turn to the last of them: a merge comes after it
};

/// One bucket's. It keeps memory of the device from step to step, and waits for the device when it
/// goes.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;

  /// The streams that Select and Exchange give work; all buckets of a network share them.
  virtual StreamHandle select_stream() const = 0;
  virtual StreamHandle exchange_stream() const = 0;

  /// Gives its stream error feedback and selection, and returns.
  virtual void Select(const DeviceStepLaunch& launch) = 0;

  /// Gives its stream the rest of that step and returns: without a wait for the device, or, where
  /// the CPU moves the messages, when the last of them has been. Throws what ended the exchange
  /// meanwhile. From one thread at a time for all buckets of a network; Select from any.
  virtual void Exchange() = 0;

  /// Waits at most `seconds` for the end of the step; returns whether it is over. Throws what ended
  /// the exchange, ExchangeFailed for what no rank of this exchange can have sent.
  virtual bool Arrived(double seconds) = 0;

  /// Of the step that arrived last.
  virtual const DeviceStepReport& report() const = 0;

  /// Waits for the device, and puts back all that the last step took from the residual, and what it
  /// masked of the velocity, so that they are what error feedback made them, bit for bit: whether
  /// the step arrived, was refused on the device, or ended anywhere in between, and whatever has
  /// been received then.
  virtual void PutBack() = 0;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COLLECTIVES_DEVICE_STEP_H_

/// The kernels of a device: all operations on gradient memory, and nothing else.
///
/// There is one implementation per type of device: csrc/kernels/cpu_kernels.cc and
/// csrc/cuda/kernels/cuda_kernels.cc; kernels_for.h chooses. Taking entries from a residual has an
/// interface of its own, candidates.h. Every call is deterministic: the same input gives the same
/// bits, whatever the instruction set. Entries of a block are in ascending index order; ties in
/// magnitude go to the lower index.
///
/// Residuals and gradients lie on the device of the kernels. Blocks and all other arguments and
/// results lie in CPU memory.

#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/kernels/candidates.h"
#include "csrc/kernels/timed_mark.h"

namespace hvd_sparse {

/// Mean and (population) standard deviation of an array.
struct Moments {
  double mean = 0;
  double stddev = 0;
};

/// The cut of an exact top-k, which keeps every |x| > magnitude and the first `ties` with |x| ==
/// magnitude.
struct TopKCut {
  float magnitude = 0;
  std::int64_t ties = 0;
};

/// The counts of a pass over an array.
struct Tally {
  std::int64_t above = 0;       ///< entries above the threshold, with or without room
  std::int64_t taken = 0;       ///< entries taken
  std::int64_t not_finite = 0;  ///< results of error feedback that were not finite
};

/// Arguments of error feedback, which adds a gradient to its part of the residual.
///
///     residual[i] = decay * residual[i] + scale * grad[i]
///
/// If a result is not finite, residual[i] = decay * residual[i] instead, so that the residual stays
/// finite. With a velocity, the gradient is added to that, and the velocity to the residual:
///
///     velocity[i] = momentum * velocity[i] + scale * grad[i]
///     residual[i] = decay * residual[i] + velocity[i]
///
/// by the same rule. That takes kernels that update velocities, and each entry is updated once.
struct Feedback {
  GradView grad;
  float decay = 1;
  float scale = 1;
  Span<float> residual;       ///< as long as the gradient
  Span<float> velocity = {};  ///< as long as the gradient, or empty
  float momentum = 0;         ///< factor of the velocity
};

/// The unsent parts that are added to a gradient that is sent dense: this rank's residual, its
/// velocity if momentum is corrected, or both. Each is as long as the gradient, or empty.
struct UnsentParts {
  Span<const float> residual;
  float decay = 1;  ///< factor of the residual
  Span<const float> velocity;
  float momentum = 0;  ///< factor of the velocity
  float gain = 1;      ///< factor of the gradient before anything is added; 1 without a velocity
  Span<float> next;    ///< output: the next velocity, as long as the velocity
  float scale = 1;     ///< factor of the gradient when it is added to a residual or a velocity
};

/// A point in the work enqueued on a device; see Kernels::EndOf.
class Mark {
 public:
  virtual ~Mark() = default;
};

/// The residual's value after a step in which Kernels::Join added it to a gradient. It is reused
/// from step to step, since it may hold memory.
class ResidualAfterJoin {
 public:
  virtual ~ResidualAfterJoin() = default;
};

/// The kernels of one device.
class Kernels {
 public:
  virtual ~Kernels() = default;

  /// True if error feedback updates velocities, too; see Feedback.
  virtual bool UpdatesVelocities() const { return false; }

  /// Applies error feedback; returns the number of results that were not finite.
  virtual std::int64_t Accumulate(const Feedback& feedback) const = 0;

  /// Returns the cut that keeps the k largest magnitudes; 1 <= k <= dense.size. Zeros and NaN are
  /// never kept: with fewer than k other entries the cut is {0, 0}, which keeps all of these.
  virtual TopKCut FindTopK(Span<const float> dense, std::int64_t k) const = 0;

  /// Returns a place for entries that are taken from a segment of `bucket`: behind the first
  /// `filled` ones of `out`, which has room for at least `room` more. On a device, a thread has one
  /// such place at a time.
  virtual std::unique_ptr<Candidates> NewCandidates(Span<float> bucket, std::int64_t filled,
                                                    std::int64_t room, SparseBlock* out) const = 0;

  virtual Moments ComputeMoments(Span<const float> dense) const = 0;

  /// Returns the number of entries with |dense[i]| > threshold.
  virtual std::int64_t CountAbove(Span<const float> dense, float threshold) const = 0;

  /// Appends to `sample` about `count` of the entries that the residual will have after error
  /// feedback, or all if there are no more. The seed determines which ones. Without a gradient
  /// (grad.data null) the residual is sampled as it is.
  virtual void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
                      std::vector<float>* sample) const = 0;

  /// Returns the kernels for samples, which lie in CPU memory.
  virtual const Kernels& OfSamples() const { return *this; }

  /// Writes the union of two finished blocks into `out` (reset by the callee to the capacity it
  /// needs, finished on return); values at equal indices are added.
  ///
  /// Survived bits: an entry keeps its bit from `own`; an entry that only `theirs` holds has none.
  /// Apart from these bits, Merge(a, b) and Merge(b, a) are bitwise equal, so partners agree. `out`
  /// gets the header of `own` and must be neither of the two.
  virtual void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const = 0;

  /// Drops all but the k largest magnitudes from the entries [begin, end) of a block; returns the
  /// new end. Zeros count as entries here: a sum that is zero has been delivered like any other.
  /// Survived bits stay. Dropped entries are put back into the `residual` of the block's bucket, if
  /// given.
  virtual std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end,
                                SparseBlock* block, Span<float> residual = {}) const = 0;

  /// Sets residual[i] = value for the entries [begin, end) of a block, bit for bit: undoes taking.
  virtual void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
                       Span<float> residual) const = 0;

  /// Puts back the entries that this rank took but did not deliver: those of `selected` whose index
  /// lacks the survived bit in `reduced`.
  virtual void Settle(const SparseBlock& selected, const SparseBlock& reduced,
                      Span<float> residual) const = 0;

  /// Adds the error to residual[i] for every (i, error), in order; appends the former values to
  /// `undo` as (i, value). Positions outside the residual are skipped.
  virtual void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                         std::vector<std::pair<Index, float>>* undo) const = 0;

  /// Undoes AddErrors and Scatter: sets residual[i] = value for every (i, value) that they
  /// appended, the last one first.
  virtual void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const = 0;

  /// Writes the part of `reduced` inside [offset, offset + grad.numel) into a gradient:
  /// grad = 0, then grad[i - offset] = scale * value.
  ///
  /// A narrow number type (float16, bfloat16) rounds; the rounding error times `loss_scale` is
  /// added to this rank's residual[i - offset], whose former value is appended to `undo` as (i,
  /// value). Error feedback requires loss_scale = 1 / (scale * ranks), since every rank returns its
  /// share: 1 if `scale` averages, 1 / ranks if it sums. Returns the number of written values that
  /// are not finite. `residual` is the part that belongs to the gradient.
  ///
  /// Unlike all other calls, this one may return before the gradient is written: see EndOfOwn.
  virtual std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                               Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                               float loss_scale = 1.0f) const = 0;

  // ---- Gradients that are sent dense, as work of a framework's stream ---------------------------

  /// Makes a ResidualAfterJoin for Join and SetResidual.
  virtual std::unique_ptr<ResidualAfterJoin> NewResidualAfterJoin() const = 0;

  /// gradient[i] = gain * gradient[i] + (decay * residual[i] + momentum * velocity[i]) / scale
  ///
  /// Adds the unsent parts to a gradient; residual and velocity stay unchanged. Their values after
  /// the step are written elsewhere: next[i] = momentum * velocity[i] + scale * gain * gradient[i],
  /// with the original gradient and the rule of Feedback; and to `after`, the part of the sum that
  /// a narrow number type rounds away or cannot hold, else zero.
  ///
  /// If a sum is not finite, the CPU leaves the gradient unchanged and the whole unsent part
  /// becomes `after`; a GPU writes the sum to a gradient of a wide type, and the step must be
  /// refused.
  virtual void Join(const UnsentParts& parts, GradView gradient, StreamHandle stream,
                    ResidualAfterJoin* after) const = 0;

  /// Sets residual = after. Returns true if the residual may be non-zero.
  virtual bool SetResidual(const ResidualAfterJoin& after, Span<float> residual,
                           StreamHandle stream) const = 0;

  /// Copies `from` to `to`, which is as long.
  virtual void Copy(Span<const float> from, Span<float> to, StreamHandle stream) const = 0;

  /// Multiplies every entry of `residual` by `decay`.
  virtual void Decay(Span<float> residual, float decay, StreamHandle stream) const = 0;

  // ---- Order between these calls and a framework's stream ---------------------------------------

  /// Returns the end of all work enqueued on a stream so far; null if there is nothing to wait for.
  virtual std::shared_ptr<const Mark> EndOf(StreamHandle /*stream*/) const { return nullptr; }

  /// Returns the end of all work that this thread's calls have enqueued so far.
  virtual std::shared_ptr<const Mark> EndOfOwn() const { return nullptr; }

  /// Makes work of this thread's later calls begin after `mark`, if that is not null. For threads
  /// of the exchange: their current device becomes that of these kernels, and their calls disturb
  /// no other thread that captures a CUDA graph.
  virtual void Follow(const Mark* /*mark*/) const {}

  /// Makes work enqueued on `stream` from now on begin after `mark`, if that is not null.
  virtual void MakeStreamFollow(StreamHandle /*stream*/, const Mark* /*mark*/) const {}

  /// Returns a new timed mark, which any thread may use; see TimedMark::Record.
  virtual std::unique_ptr<TimedMark> NewTimedMark() const {
    return std::make_unique<CpuTimedMark>();
  }
};

/// Returns the kernels of the CPU.
const Kernels& CpuKernels();

/// Returns the instruction set that CpuKernels() uses on this machine: "avx512", "avx2" or
/// "baseline".
const char* CpuInstructionSet();

}  // namespace hvd_sparse

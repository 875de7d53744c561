/// The vocabulary of device work: everything that touches gradient memory, and nothing else.
///
/// One implementation per device: csrc/kernels/cpu_kernels.cc and csrc/cuda/cuda_kernels.cc; which
/// of them serves a device is said in kernels_for.h. Every call is deterministic: the same input
/// gives the same bits, whatever the instruction set. Entries of a block are in ascending index
/// order; ties in magnitude go to the lower index.
///
/// Residuals and gradients lie on the device of the kernels. Blocks, and whatever else is passed or
/// returned, lie in the memory of the CPU.

#ifndef HVD_SPARSE_KERNELS_KERNELS_H_
#define HVD_SPARSE_KERNELS_KERNELS_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "csrc/base/device.h"
#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/kernels/timed_mark.h"

namespace hvd_sparse {

/// Mean and standard deviation (of the population) of an array.
struct Moments {
  double mean = 0;
  double stddev = 0;
};

/// What an exact top-k keeps: every |x| > magnitude, and the first `ties` of |x| == magnitude.
struct TopKCut {
  float magnitude = 0;
  std::int64_t ties = 0;
};

/// What a pass over an array found.
struct Tally {
  std::int64_t above = 0;       ///< entries above the threshold, whether or not there was room
  std::int64_t taken = 0;       ///< entries that moved to the block
  std::int64_t not_finite = 0;  ///< entries that error feedback kept out of the residual
};

/// A gradient on its way into the part of the residual that belongs to it: error feedback.
///
///     residual[i] = decay * residual[i] + scale * grad[i]
///
/// Where the result is not finite, residual[i] = decay * residual[i] instead, so that nothing
/// non-finite enters the residual.
struct Feedback {
  GradView grad;
  float decay = 1;
  float scale = 1;
  Span<float> residual;  ///< of the same length
};

/// What goes along with a gradient that travels dense: what this rank has not sent yet, where
/// momentum is corrected its velocity, or both. Each is as long as the gradient, or empty.
struct Along {
  Span<const float> residual;
  float decay = 1;  ///< of the residual
  Span<const float> velocity;
  float momentum = 0;  ///< of the velocity
  Span<float> next;    ///< as long as the velocity: gets what that has to be then
  float scale = 1;     ///< of the gradient, where it joins a residual or a velocity
};

/// A point in the work that a device has been given; see Kernels::EndOf.
class Mark {
 public:
  virtual ~Mark() = default;
};

/// What a residual has to be once the gradient that it joined has been applied; see Kernels::Join.
/// Kept from step to step, since it may hold memory.
class Rest {
 public:
  virtual ~Rest() = default;
};

/// Taking moves entries from a residual to a block that is being written: the block gains
/// (offset + i, residual[i]) behind its `filled` entries, and residual[i] becomes zero. So every
/// value is at one place at any time.
class Kernels {
 public:
  virtual ~Kernels() = default;

  /// Error feedback. Returns how many entries were not finite.
  virtual std::int64_t Accumulate(const Feedback& feedback) const = 0;

  /// Error feedback, and TakeAbove of the result, in one pass: reads the gradient and the residual
  /// once and writes the residual once.
  virtual Tally AccumulateAndTake(const Feedback& feedback, float threshold, Index offset,
                                  std::int64_t filled, std::int64_t limit,
                                  SparseBlock* out) const = 0;

  /// Takes the entries with |residual[i]| > threshold, first ones first, until the block holds
  /// `limit` entries; counts all of them. limit <= out->capacity().
  virtual Tally TakeAbove(Span<float> residual, float threshold, Index offset, std::int64_t filled,
                          std::int64_t limit, SparseBlock* out) const = 0;

  /// Where the k largest magnitudes end; 1 <= k <= dense.size. Zeros and NaN are never kept: with
  /// fewer than k other entries the cut is {0, 0}, which keeps them all.
  virtual TopKCut FindTopK(Span<const float> dense, std::int64_t k) const = 0;

  /// Takes the entries that `cut` keeps; returns how many.
  virtual std::int64_t TakeCut(Span<float> residual, TopKCut cut, Index offset, std::int64_t filled,
                               SparseBlock* out) const = 0;

  /// Takes the entries at ascending positions of `residual`, zeros too.
  virtual void TakeAt(Span<float> residual, Span<const Index> positions, Index offset,
                      std::int64_t filled, SparseBlock* out) const = 0;

  virtual Moments ComputeMoments(Span<const float> dense) const = 0;

  /// How many |dense[i]| > threshold there are.
  virtual std::int64_t CountAbove(Span<const float> dense, float threshold) const = 0;

  /// Appends about `count` of the entries that error feedback is going to make to `sample`; all of
  /// them if there are no more. Which ones follows from the seed. Without a gradient (grad.data
  /// null) the residual is sampled as it is.
  virtual void Sample(const Feedback& feedback, std::int64_t count, std::uint64_t seed,
                      std::vector<float>* sample) const = 0;

  /// The kernels of what Sample returns, which lies in the memory of the CPU.
  virtual const Kernels& OfSamples() const { return *this; }

  /// Writes the union of two finished blocks into `out` (reset by the callee to the capacity it
  /// needs, finished on return); values at equal indices are added.
  ///
  /// Survived bits: an entry keeps the bit that it has in `own`; one that only `theirs` holds has
  /// none. Apart from the bits, Merge(a, b) and Merge(b, a) are bitwise equal, so partners agree.
  /// `out` has the header of `own` and is neither of the two.
  virtual void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const = 0;

  /// Drops from the entries [begin, end) of a block all but the k largest magnitudes; returns the
  /// new end. Zeros count as entries here: a sum that came out as zero has been delivered like any
  /// other. Survived bits stay. Dropped entries return to the `residual` of the block's bucket,
  /// where one is given.
  virtual std::int64_t KeepTopK(std::int64_t k, std::int64_t begin, std::int64_t end,
                                SparseBlock* block, Span<float> residual = {}) const = 0;

  /// residual[i] = value for the entries [begin, end) of a block, bit for bit: undoes taking.
  virtual void PutBack(const SparseBlock& block, std::int64_t begin, std::int64_t end,
                       Span<float> residual) const = 0;

  /// Puts back what this rank took and did not deliver: `selected` entries whose index does not
  /// have the survived bit in `reduced`.
  virtual void Settle(const SparseBlock& selected, const SparseBlock& reduced,
                      Span<float> residual) const = 0;

  /// residual[i] += error for every (i, error), one after the other; appends the former values to
  /// `undo` as (i, value). Positions outside the residual are left out.
  virtual void AddErrors(Span<const std::pair<Index, float>> errors, Span<float> residual,
                         std::vector<std::pair<Index, float>>* undo) const = 0;

  /// Undoes AddErrors and Scatter: residual[i] = value for every (i, value) that they appended, the
  /// last one first.
  virtual void Restore(Span<const std::pair<Index, float>> undo, Span<float> residual) const = 0;

  /// Writes the part of `reduced` inside [offset, offset + grad.numel) into a gradient:
  /// grad = 0, then grad[i - offset] = scale * value.
  ///
  /// In a narrow number type (float16, bfloat16) that rounds; what is lost to rounding, times
  /// `loss_scale`, is added to this rank's residual[i - offset], whose former value is appended to
  /// `undo` as (i, value). The law wants loss_scale = 1 / (scale * ranks), since every rank returns
  /// its share: 1 where `scale` averages, 1 / ranks where it sums. Returns how many written values
  /// are not finite. `residual` is the part that belongs to the gradient.
  ///
  /// Alone among all calls, this one may leave the gradient to be written later: see EndOfOwn.
  virtual std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                               Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                               float loss_scale = 1.0f) const = 0;

  // ---- What travels dense, as work of a framework's stream --------------------------------------

  /// For Join.
  virtual std::unique_ptr<Rest> NewRest() const = 0;

  /// gradient[i] += (decay * residual[i] + momentum * velocity[i]) / scale; residual and velocity
  /// stay as they are. What they have to be once the gradient has been applied goes elsewhere:
  /// next[i] = momentum * velocity[i] + scale * gradient[i], with the gradient as it came and the
  /// rule of Feedback; and in `rest`, what a narrow number type rounds away or cannot hold, else
  /// zero.
  ///
  /// A sum that is not finite: on the CPU the gradient is left alone, and the residual keeps its
  /// entry; on a device the gradient holds it if its type is wide, and the step must be refused.
  virtual void Join(const Along& along, GradView gradient, StreamHandle stream,
                    Rest* rest) const = 0;

  /// residual = rest. Returns whether that may be other than zero.
  virtual bool PutRest(const Rest& rest, Span<float> residual, StreamHandle stream) const = 0;

  /// to = from, which is as long.
  virtual void Copy(Span<const float> from, Span<float> to, StreamHandle stream) const = 0;

  /// residual[i] *= decay.
  virtual void Decay(Span<float> residual, float decay, StreamHandle stream) const = 0;

  // ---- Order between these calls and a framework's stream ---------------------------------------

  /// The end of all work that a stream has been given so far; null where there is nothing to wait
  /// for.
  virtual std::shared_ptr<const Mark> EndOf(StreamHandle /*stream*/) const { return nullptr; }

  /// The end of what this thread's calls have given the device so far.
  virtual std::shared_ptr<const Mark> EndOfOwn() const { return nullptr; }

  /// Work of this thread's calls from now on begins after `mark`; a null one is no wait. For
  /// threads of the exchange: their current device becomes that of these kernels, and what they do
  /// there disturbs no other thread that captures a CUDA graph.
  virtual void Follow(const Mark* /*mark*/) const {}

  /// Work that `stream` is given from now on begins after `mark`; a null one is no wait.
  virtual void LetFollow(StreamHandle /*stream*/, const Mark* /*mark*/) const {}

  /// A mark that tells times, of any thread; see TimedMark::Record.
  virtual std::unique_ptr<TimedMark> NewTimedMark() const {
    return std::make_unique<CpuTimedMark>();
  }
};

/// The kernels of the CPU.
const Kernels& CpuKernels();

/// The instruction set that CpuKernels() uses on this machine: "avx512", "avx2" or "baseline".
const char* CpuInstructionSet();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_KERNELS_H_

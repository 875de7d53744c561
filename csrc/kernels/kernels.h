/// The vocabulary of device work: everything that touches gradient memory, and nothing else.
///
/// One implementation per device; so far csrc/kernels/cpu_kernels.cc. Every call is deterministic:
/// the same input gives the same bits, whatever the instruction set. Entries of a block are in
/// ascending index order; ties in magnitude go to the lower index.

#ifndef HVD_SPARSE_KERNELS_KERNELS_H_
#define HVD_SPARSE_KERNELS_KERNELS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

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

class Kernels {
 public:
  virtual ~Kernels() = default;

  /// residual[i] = decay * residual[i] + scale * grad[i]. The only place where a gradient is read.
  ///
  /// Where the result is not finite, residual[i] = decay * residual[i] instead, so that nothing
  /// non-finite enters the residual. Returns how many entries that were.
  virtual std::int64_t Accumulate(GradView grad, float decay, float scale,
                                  Span<float> residual) const = 0;

  virtual Moments ComputeMoments(Span<const float> dense) const = 0;

  /// How many |dense[i]| > threshold there are.
  virtual std::int64_t CountAbove(Span<const float> dense, float threshold) const = 0;

  /// Copies about `count` entries, evenly spread over the array, into `sample`; all of them if
  /// there are no more. What a threshold should be can be told from them.
  virtual void Sample(Span<const float> dense, std::int64_t count,
                      std::vector<float>* sample) const = 0;

  /// Appends the entries with |dense[i]| > threshold as (offset + i, dense[i]) to the `filled`
  /// entries of a block that is being written, until it holds `limit` entries.
  ///
  /// Returns how many entries lie above the threshold, also when not all of them fitted; what did
  /// not fit stays in the residual. limit <= out->capacity().
  virtual std::int64_t SelectAbove(Span<const float> dense, float threshold, Index offset,
                                   std::int64_t filled, std::int64_t limit,
                                   SparseBlock* out) const = 0;

  /// Where the k largest magnitudes end; 1 <= k <= dense.size. Zeros and NaN are never kept: with
  /// fewer than k other entries the cut is {0, 0}, which keeps them all.
  virtual TopKCut FindTopK(Span<const float> dense, std::int64_t k) const = 0;

  /// Appends the entries that `cut` keeps, like SelectAbove; returns how many were appended.
  virtual std::int64_t SelectCut(Span<const float> dense, TopKCut cut, Index offset,
                                 std::int64_t filled, SparseBlock* out) const = 0;

  /// Writes the union of two finished blocks into `out` (reset by the callee to the capacity it
  /// needs, finished on return); values at equal indices are added.
  ///
  /// Survived bits: an entry keeps the bit that it has in `own`; one that only `theirs` holds has
  /// none. Apart from the bits, Merge(a, b) and Merge(b, a) are bitwise equal, so partners agree.
  /// `out` has the header of `own` and is neither of the two.
  virtual void Merge(const SparseBlock& own, const SparseBlock& theirs, SparseBlock* out) const = 0;

  /// Drops from a finished block all but its k largest magnitudes (survived bits stay). Zeros count
  /// as entries here: a sum that came out as zero has been delivered like any other.
  virtual void KeepTopK(std::int64_t k, SparseBlock* block) const = 0;

  /// residual[i] = 0 where this rank's entry was delivered: `selected` entries whose index has
  /// the survived bit in `reduced`.
  virtual void Settle(const SparseBlock& selected, const SparseBlock& reduced,
                      Span<float> residual) const = 0;

  /// Undoes Settle: residual[i] = value for every entry of `selected`, bit for bit.
  virtual void PutBack(const SparseBlock& selected, Span<float> residual) const = 0;

  /// Writes the part of `reduced` inside [offset, offset + grad.numel) into a gradient:
  /// grad = 0, then grad[i - offset] = scale * value.
  ///
  /// In a narrow number type (float16, bfloat16) that rounds; what is lost to rounding, times
  /// `loss_scale`, is added to this rank's residual[i - offset], whose former value is appended to
  /// `undo` as (i, value). The law wants loss_scale = 1 / (scale * ranks), since every rank returns
  /// its share: 1 where `scale` averages, 1 / ranks where it sums. Returns how many written values
  /// are not finite. `residual` is the part that belongs to the gradient.
  virtual std::int64_t Scatter(const SparseBlock& reduced, float scale, Index offset, GradView grad,
                               Span<float> residual, std::vector<std::pair<Index, float>>* undo,
                               float loss_scale = 1.0f) const = 0;
};

/// The kernels of the CPU.
const Kernels& CpuKernels();

/// The instruction set that CpuKernels() uses on this machine: "avx512", "avx2" or "baseline".
const char* CpuInstructionSet();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_KERNELS_KERNELS_H_

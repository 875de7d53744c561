/// The kernels of a CUDA device, as the CPU launches them; contracts in csrc/kernels/kernels.h and
/// candidates.h. All memory lies on the device. Each section names the file of its kernels.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/work.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/sign_groups.h"

namespace hvd_sparse::cuda {

// ---- Sizes of the units that blocks of threads work on ------------------------------------------

constexpr std::int64_t kTileEntries = 4096;  ///< the most entries of an array in one tile
constexpr std::int32_t kGroupTiles = 32;     ///< the most tiles of an array in one group

// ---- take.cu: error feedback and taking, in one pass over one array -----------------------------

/// Memory of the device for entries taken from a residual.
struct Taken {
  Index* indices;
  float* values;
  std::int64_t room;
  Index offset;  ///< of the residual in its bucket
};

/// The counts of a pass.
struct Totals {
  unsigned above, ties;  ///< entries above the threshold, and those equal to the cut
  unsigned not_finite;
};

/// Applies error feedback; adds the number of entries that were not finite to `not_finite`, on the
/// device.
void LaunchAccumulate(const Feedback& feedback, unsigned* not_finite, cudaStream_t stream);

/// Applies error feedback if there is a gradient (feedback.grad.data); then moves the entries with
/// |residual| > threshold to `taken`, while there is room, by way of `pile`, memory for as many
/// entries. If there is not enough room, the entries taken are any, in any order: LaunchTakeAbove
/// can take the first ones once they are put back. Returns the totals, on the device; only above
/// and not_finite are counted. Two launches.
const Totals* LaunchTakeByPile(const Feedback& feedback, float threshold, const Taken& pile,
                               const Taken& taken, Work* work);

/// Moves the entries with |residual| > threshold to `taken`, first ones first, while there is room.
void LaunchTakeAbove(Span<float> residual, float threshold, const Taken& taken, Work* work);

/// Moves the entries that `cut` keeps to `taken`, while there is room. Returns the totals, on the
/// device.
const Totals* LaunchTakeCut(Span<float> residual, TopKCut cut, const Taken& taken, Work* work);

// ---- block_top_k.cu: keeping the largest entries of a block -------------------------------------

struct Digits;

/// Scratch memory of one LaunchKeepTopK, all zero at first.
struct TopKScratch {
  Digits* digits = nullptr;
  unsigned* begun = nullptr;            ///< tiles that have begun
  unsigned long long* words = nullptr;  ///< see look_back.cuh

  /// Takes the memory for a block of `capacity` entries from `divider`.
  static TopKScratch From(Divider* divider, std::int64_t capacity);
};

/// Options of one LaunchKeepTopK.
struct KeepTopKOptions {
  std::int64_t k;
  bool is_counted;       ///< LaunchMerge has counted the first level of scratch.digits
  bool marks;            ///< kept entries get the survived bit; else their bits stay
  Span<float> residual;  ///< of the bucket; dropped entries return to it unless it is empty
};

/// Writes the k largest magnitudes of `from` to `to`, with the bits of Kernels::KeepTopK: ties go
/// to the lower index, zeros count, and NaN is larger than all. `to` has room for k, and receives
/// the header of `from` with its own count. Three launches, or four if the first level is not
/// counted yet.
void LaunchKeepTopK(const KeepTopKOptions& options, const DeviceBlock& from, const DeviceBlock& to,
                    const TopKScratch& scratch, cudaStream_t stream);

/// Writes the entries of a group, none of them zero, to `to`; the others return to the residual.
/// One launch, which needs no digits.
void LaunchKeepGroup(const SignGroup& group, Span<float> residual, const DeviceBlock& from,
                     const DeviceBlock& to, const TopKScratch& scratch, cudaStream_t stream);

// ---- block_merge.cu: merging two blocks ---------------------------------------------------------

struct MergePass;

/// The largest capacity of either of two blocks to merge.
constexpr std::int64_t kMostToMerge = kMaxBucketNumel / 2 / DeviceBlock::kUnit * DeviceBlock::kUnit;

/// Scratch memory of one merge, all zero at first.
struct MergeScratch {
  MergePass* pass = nullptr;
  unsigned long long* words = nullptr;  ///< see look_back.cuh

  /// Takes the memory for two blocks of `capacity` entries together from `divider`.
  static MergeScratch From(Divider* divider, std::int64_t capacity);
};

/// Merges two blocks with the bits of Kernels::Merge: `out` becomes their union, with values at
/// equal indices added and the survived bits of `own`. It has room for both, and is neither of
/// them.
///
/// The header of `out` is that of `own` combined with that of `theirs` (device_block.h): the flags
/// of both and the worse verdict. It also has kSumNotFinite if a value is not finite, kDisagree if
/// the two blocks do not belong together, and kMalformed if positions do not ascend or a count
/// exceeds its capacity. Malformed blocks cause no access beyond any block's memory.
///
/// Counts the first level of a radix select of the result in `digits`, unless that is null.
void LaunchMerge(const DeviceBlock& own, const DeviceBlock& theirs, const DeviceBlock& out,
                 const MergeScratch& scratch, Digits* digits, cudaStream_t stream);

// ---- sign_sums.cu: the smallest of a sparsifier's candidates, the largest of either sign --------

/// Returns the smallest magnitude among at least one value on the device; none of them is NaN.
float SmallestMagnitude(const float* values, std::int64_t count, Work* work);

/// Returns the k largest of the positive values on the device, and of the negative ones; none of
/// the values is zero or NaN. k >= 1.
SignSums LargestOfSigns(const float* values, std::int64_t count, std::int64_t k, Work* work);

// ---- entry_kernels.cu: single entries of a residual; scatter; join ------------------------------

/// values[n] = residual[positions[n]].
void LaunchGather(const float* residual, const Index* positions, std::int64_t count, float* values,
                  cudaStream_t stream);

/// values[n] = residual[positions[n]], and then residual[positions[n]] = 0.
void LaunchGatherAndClear(float* residual, const Index* positions, std::int64_t count,
                          float* values, cudaStream_t stream);

/// residual[positions[n]] = values[n].
void LaunchPut(const Index* positions, const float* values, std::int64_t count, float* residual,
               cudaStream_t stream);

/// values[n] = entry n of a sample as error feedback will leave it: entry n % length of the stretch
/// that begins at begins[n / length]. Without a gradient the residual is sampled as it is.
void LaunchSample(const Feedback& feedback, const Index* begins, std::int64_t length,
                  std::int64_t count, float* values, cudaStream_t stream);

/// The outcome of writing an entry in a narrow number type.
enum class Narrowed : std::uint8_t { kExact, kRounded, kNotFinite };

/// Arguments of one Kernels::Scatter; all memory lies on the device.
struct ScatterArgs {
  const Index* indices;  ///< of the block's entries; those beyond the gradient are skipped
  const float* values;
  std::int64_t count;
  float scale;
  Index offset;  ///< of the gradient in its bucket
  GradView grad;
  Span<float> residual;
  float loss_scale;

  /// For narrow number types, by entry: the outcome and, if it was rounded, what the residual held
  /// before the loss was added, else 0.
  Narrowed* narrowed;
  float* former;
};

void LaunchScatter(const ScatterArgs& args, cudaStream_t stream);

/// Enqueues Kernels::Join. `after`: for a narrow number type, device memory as long as the
/// gradient, which receives what the type cannot hold; else unused.
void LaunchJoin(const UnsentParts& parts, GradView gradient, float* after, cudaStream_t stream);

/// Enqueues residual[i] *= decay.
void LaunchDecay(Span<float> residual, float decay, cudaStream_t stream);

// ---- moments.cu: counts and moments of arrays ---------------------------------------------------

std::int64_t CountAbove(Span<const float> dense, float threshold, Work* work);

/// Gives the same bits on every device: the order of adding depends on the size alone. It differs
/// from the CPU's order, and so the last bits differ from the CPU's.
Moments ComputeMoments(Span<const float> dense, Work* work);

// ---- top_k.cu: the cut of an exact top-k of an array --------------------------------------------

/// Finds the cut by a radix select, as on the CPU: three passes, each with a histogram.
TopKCut FindTopK(Span<const float> dense, std::int64_t k, Work* work);

}  // namespace hvd_sparse::cuda

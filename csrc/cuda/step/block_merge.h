/// Merging two blocks, on their device.

#ifndef HVD_SPARSE_CUDA_STEP_BLOCK_MERGE_H_
#define HVD_SPARSE_CUDA_STEP_BLOCK_MERGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/base/device_block.h"
#include "csrc/cuda/base/device_memory.h"

namespace hvd_sparse::cuda {

struct MergePass;
struct Digits;

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
/// of both, the worse verdict, and the sum of not_finite. It also has kSumNotFinite if a value is
/// not finite, kDisagree if the two blocks do not belong together, and kMalformed if positions do
/// not ascend or a count exceeds its capacity. Malformed blocks cause no access beyond any block's
/// memory.
///
/// Counts the first level of a radix select of the result in `digits`, unless that is null.
void LaunchMerge(const DeviceBlock& own, const DeviceBlock& theirs, const DeviceBlock& out,
                 const MergeScratch& scratch, Digits* digits, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_STEP_BLOCK_MERGE_H_

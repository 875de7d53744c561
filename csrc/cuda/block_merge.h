/// Merging two blocks of a device, there.

#ifndef HVD_SPARSE_CUDA_BLOCK_MERGE_H_
#define HVD_SPARSE_CUDA_BLOCK_MERGE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "csrc/cuda/device_block.h"
#include "csrc/cuda/device_memory.h"

namespace hvd_sparse::cuda {

struct MergePass;
struct Digits;

/// Entries for which either of two blocks to merge can have room.
constexpr std::int64_t kMostToMerge = kMaxBucketNumel / 2 / DeviceBlock::kUnit * DeviceBlock::kUnit;

/// What a merge needs, all zero at first; good for one.
struct MergeScratch {
  MergePass* pass = nullptr;
  unsigned long long* words = nullptr;  ///< of look_back.cuh

  /// For blocks of so many entries, of both together.
  static MergeScratch From(Divider* divider, std::int64_t capacity);
};

/// Kernels::Merge, bit for bit: the union of two blocks, values at equal indices added, the
/// survived bits of `own`. `out` has room for both, and is neither of them.
///
/// The header is own's with what theirs adds to it (device_block.h): flags of both, the lowest bad
/// rank, all that is not finite; kSumNotFinite where a value is not, kDisagree where the two do not
/// belong together, kMalformed where positions do not ascend, with which all memory is safe.
///
/// Where `digits` is given, the first level of a radix select of the result is counted there.
void LaunchMerge(const DeviceBlock& own, const DeviceBlock& theirs, const DeviceBlock& out,
                 const MergeScratch& scratch, Digits* digits, cudaStream_t stream);

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BLOCK_MERGE_H_

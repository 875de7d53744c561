/// Sizes of the units that blocks of threads work on.

#ifndef HVD_SPARSE_CUDA_BASE_TILES_H_
#define HVD_SPARSE_CUDA_BASE_TILES_H_

#include <cstdint>

namespace hvd_sparse::cuda {

constexpr std::int64_t kTileEntries = 4096;   ///< the most entries of a gradient in one tile
constexpr std::int32_t kGroupTiles = 32;      ///< the most tiles of a segment in one group
constexpr std::int64_t kChunkEntries = 1024;  ///< candidates of a segment in one chunk

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BASE_TILES_H_

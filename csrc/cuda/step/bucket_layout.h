/// The division of a bucket into the units that blocks of threads work on.
///
///     segments    | 0                 | 1        |        k entries are selected from each
///     gradients   | a          | b               |        memory, number type, decay of its own
///     slices      | a          | b    | b        |        the part of a gradient in a segment
///     tiles       |a   |a   |a |b   |b|b   |b    |        a block's share of a slice
///
/// So a pass over all layers is a single launch, whatever their sizes, and a block of threads works
/// on one gradient and one segment only.

#pragma once

#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/cuda/kernels/launches.h"

namespace hvd_sparse::cuda {

struct Tile {
  Index begin;        ///< in the bucket
  std::int32_t size;  ///< 1 to kTileEntries
  std::int32_t segment, gradient;
  Index in_gradient;  ///< where it begins in the gradient
};

/// A segment that is not empty.
struct SegmentPlace {
  std::int32_t number;                ///< among all segments, empty ones too
  std::int32_t first_tile, end_tile;  ///< its tiles
  std::int32_t first_group;           ///< of its tiles
  Index candidates;                   ///< where its candidates begin
};

/// A part of a segment's tiles: kGroupTiles from `first_tile` on, or as many as there are.
struct TileGroup {
  std::int32_t segment, first_tile;
};

/// A part of a segment's candidates: kChunkEntries from `begin` on, or as many as there are.
struct Chunk {
  std::int32_t segment, begin;
};

/// The layout of a bucket. Empty segments are left out; only SegmentPlace::number counts them, too.
struct BucketLayout {
  std::vector<Tile> tiles;             ///< in the order of the bucket
  std::vector<SegmentPlace> segments;  ///< likewise
  std::vector<TileGroup> groups;       ///< likewise
  std::vector<Chunk> chunks;           ///< likewise
  std::vector<Index> gradient_begins;  ///< begins of all gradients, and the end of the last
  std::vector<std::int64_t> segment_numels;
  std::int64_t candidates = 0;  ///< room for the candidates of all segments
  std::int64_t capacity = 0;    ///< the most entries that all segments together keep

  /// Throws InvalidArgument if the bucket's numbers do not fit together, or it has no entries.
  explicit BucketLayout(const BucketSpec& spec);
};

}  // namespace hvd_sparse::cuda

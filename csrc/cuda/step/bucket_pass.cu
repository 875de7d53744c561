#include "csrc/cuda/base/digits.cuh"
#include "csrc/cuda/base/look_back.cuh"
#include "csrc/cuda/kernels/pile.cuh"
#include "csrc/cuda/step/bucket_pass.h"

namespace hvd_sparse::cuda {

void SelectionArgs::DivideZeros(const BucketLayout& layout, Divider* divider) {
  const auto tiles = static_cast<std::int64_t>(layout.tiles.size());
  const auto count = static_cast<std::int64_t>(layout.segments.size());
  pass = divider->Take<BucketPass>(1);
  segments = divider->Take<SegmentPass>(count);
  group_words = divider->Take<TileWord>(static_cast<std::int64_t>(layout.groups.size()));
  words_again = divider->Take<TileWord>(tiles);
  segment_words = divider->Take<TileWord>(count);
}

void SelectionArgs::DivideRest(const BucketLayout& layout, Divider* divider) {
  const auto count = static_cast<std::int64_t>(layout.segments.size());
  tried = divider->Take<float>(count);
  indices = divider->Take<Index>(layout.candidates);
  values = divider->Take<float>(layout.candidates);
  pile_indices = divider->Take<Index>(layout.candidates);
  pile_values = divider->Take<float>(layout.candidates);
  const auto tiles = static_cast<std::int64_t>(layout.tiles.size());
  missed = divider->Take<unsigned>(tiles);
  parts = divider->Take<PilePart>(tiles * kTakeWarps);
  digits = divider->Take<Digits>(count);
}

}  // namespace hvd_sparse::cuda

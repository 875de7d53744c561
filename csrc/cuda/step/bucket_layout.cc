#include "csrc/cuda/step/bucket_layout.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/samples.h"
#include "csrc/sparsifiers/threshold_sparsifier.h"

namespace hvd_sparse::cuda {

BucketLayout::BucketLayout(const BucketSpec& spec) {
  CheckSpec(spec);
  Require(spec.Numel() > 0, "bucket '", spec.name, "' must have entries to lie on a device");
  std::int64_t begin = 0;  // in the bucket
  for (const std::int64_t numel : spec.gradient_numels) {
    gradient_begins.push_back(static_cast<Index>(begin));
    begin += numel;
  }
  gradient_begins.push_back(static_cast<Index>(begin));

  std::int32_t gradient = 0;
  begin = 0;
  for (std::size_t number = 0; number < spec.segment_numels.size(); ++number) {
    const std::int64_t numel = spec.segment_numels[number], max_k = spec.max_ks[number];
    if (numel == 0) continue;
    const auto own = static_cast<std::int32_t>(segments.size());
    const auto first = static_cast<std::int32_t>(tiles.size());
    for (const std::int64_t end = begin + numel; begin < end;) {
      while (gradient_begins[gradient + 1] <= begin) ++gradient;
      const std::int64_t slice_end = std::min<std::int64_t>(end, gradient_begins[gradient + 1]);
      const std::int64_t size = std::min(slice_end - begin, kTileEntries);
      tiles.push_back({static_cast<Index>(begin), static_cast<std::int32_t>(size), own, gradient,
                       static_cast<Index>(begin - gradient_begins[gradient])});
      begin += size;
    }
    const auto behind = static_cast<std::int32_t>(tiles.size());
    segments.push_back({static_cast<std::int32_t>(number), first, behind,
                        static_cast<std::int32_t>(groups.size()), static_cast<Index>(candidates)});
    for (std::int32_t tile = first; tile < behind; tile += kGroupTiles) {
      groups.push_back({own, tile});
    }
    segment_numels.push_back(numel);
    const std::int64_t room = RoomForCandidates(max_k, numel);
    for (std::int64_t chunk = 0; chunk < room; chunk += kChunkEntries) {
      chunks.push_back({own, static_cast<std::int32_t>(chunk)});
    }
    candidates += room;
    capacity += MostFor(max_k, numel);
  }
}

}  // namespace hvd_sparse::cuda

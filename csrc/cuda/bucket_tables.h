/// What kernels look up of a bucket: tables in the device's memory.
///
/// The layout is copied there once. What a step brings of its own is copied in the order of its
/// stream, from pinned memory, where it is not that of the step before; nobody waits for that,
/// unless the stream is so many changes behind that all pinned memory is under way.

#ifndef HVD_SPARSE_CUDA_BUCKET_TABLES_H_
#define HVD_SPARSE_CUDA_BUCKET_TABLES_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/cuda/bucket_layout.h"
#include "csrc/cuda/device_memory.h"
#include "csrc/cuda/stream.h"

namespace hvd_sparse::cuda {

/// Where a gradient comes from and its result goes to.
struct Flow {
  const void* gradient = nullptr;
  void* output = nullptr;
  DType gradient_type = DType::kFloat32, output_type = DType::kFloat32;
  float decay = 1;
  std::uint32_t unused = 0;  ///< so that no byte is left open
};

/// How many entries of a segment are wanted, and will do: see threshold_sparsifier.h.
struct ThresholdControl {
  std::uint32_t k, fewest, most, room;
  std::uint32_t takes_all;  ///< `most` are all entries: all non-zeros are taken, nothing is learned
};

/// All of it, for kernels.
struct BucketView {
  const Tile* tiles;
  const SegmentPlace* segments;
  const Chunk* chunks;
  const Index* gradient_begins;
  const Flow* flows;                 ///< by gradient
  const ThresholdControl* controls;  ///< by segment
  unsigned tile_count, segment_count, chunk_count, gradient_count;
};

class BucketTables {
 public:
  /// Allocates on the current device, and waits for the copy.
  explicit BucketTables(const BucketLayout& layout);

  /// Gives the stream the copy of what has changed, of a launch that has been checked.
  void Update(const DeviceLaunch& launch, cudaStream_t stream);

  const BucketView& view() const { return view_; }

  /// Entries that the segments of the last Update are asked for.
  std::int64_t asked() const { return asked_; }

 private:
  /// Pinned memory that a copy may be reading.
  struct Slot {
    explicit Slot(std::size_t bytes) : memory(bytes) {}

    const PinnedBytes memory;
    Event read;
    bool is_used = false;
  };

  void DivideLayout(Divider* divider, const BucketLayout& layout);
  void Send(cudaStream_t stream);

  const std::vector<SegmentPlace> segments_;
  const std::vector<std::int64_t> segment_numels_;
  std::vector<Flow> flows_;
  std::vector<ThresholdControl> controls_;
  std::vector<char> sent_;  // what the device has, or is going to have
  std::int64_t asked_ = 0;
  BucketView view_ = {};
  const DeviceBytes layout_, changing_;
  std::vector<std::unique_ptr<Slot>> slots_;  // take turns
  std::size_t next_slot_ = 0;
};

}  // namespace hvd_sparse::cuda

#endif  // HVD_SPARSE_CUDA_BUCKET_TABLES_H_

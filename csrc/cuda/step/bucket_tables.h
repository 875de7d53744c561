/// The tables of a bucket in device memory, which kernels look up.
///
/// The layout is copied there once. The values of a step are copied in stream order, from pinned
/// memory, if they differ from those of the step before. The CPU does not wait for that unless the
/// stream is so many changes behind that all pinned memory is in use.

#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/collectives/bucket_spec.h"
#include "csrc/cuda/base/memory.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/step/bucket_layout.h"

namespace hvd_sparse::cuda {

/// A launch, all memory of which lies on the device of the exchange, the states too.
///
/// The struct and its vectors may be destroyed when DeviceExchange::Run returns. All memory that
/// they point to must stay until the stream has done the step.
struct DeviceLaunch : Launch {
  std::vector<GradView> outputs;  ///< receive the result; may be the gradients' memory
  void* former = nullptr;         ///< memory of a block with the capacity of reduced(), see
                                  ///< LaunchNoteFormer; null if the step is never undone
  float* masked = nullptr;        ///< memory of as many values as selected() has room for, see
                                  ///< SettleArgs; null if the step is never undone
};

/// Throws InvalidArgument if a launch does not fit the bucket.
void CheckStep(const BucketSpec& spec, const DeviceLaunch& launch);

/// The input and output memory of one gradient, and its decay.
struct GradientMemory {
  const void* gradient = nullptr;
  void* output = nullptr;
  DType gradient_type = DType::kFloat32, output_type = DType::kFloat32;
  float decay = 1;
  std::uint32_t unused = 0;  ///< so that no byte is padding
};

/// The wanted number of a segment's entries, and its bounds; see threshold_sparsifier.h.
struct ThresholdControl {
  std::uint32_t k, fewest, most, room;
  std::uint32_t takes_all;  ///< 1 if `most` is the numel: takes all non-zeros, learns nothing
};

/// All tables of a bucket, as kernels get them.
struct BucketView {
  const Tile* tiles;
  const SegmentPlace* segments;
  const TileGroup* groups;
  const Chunk* chunks;
  const Index* gradient_begins;
  const GradientMemory* gradient_memory;  ///< by gradient
  const ThresholdControl* controls;       ///< by segment
  unsigned tile_count, segment_count, group_count, chunk_count, gradient_count;
};

class BucketTables {
 public:
  /// Allocates on the current device, and waits for the copy.
  explicit BucketTables(const BucketLayout& layout);

  /// Enqueues the copy of what has changed. `launch` has been checked.
  void Update(const DeviceLaunch& launch, cudaStream_t stream);

  const BucketView& view() const { return view_; }

  /// The sum of all segments' k in the last Update.
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
  std::vector<GradientMemory> gradient_memory_;
  std::vector<ThresholdControl> controls_;
  std::vector<char> sent_;  // content of changing_ once all copies are done
  std::int64_t asked_ = 0;
  BucketView view_ = {};
  const DeviceBytes layout_, changing_;
  std::vector<std::unique_ptr<Slot>> slots_;  // used in turn
  std::size_t next_slot_ = 0;
};

}  // namespace hvd_sparse::cuda

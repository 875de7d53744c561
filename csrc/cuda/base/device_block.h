/// A block that lies on a device, and is sent from there as it is.
///
///     header | indices[capacity] | values[capacity]
///
/// It is one piece of memory whose length every rank knows beforehand, so sending it can be
/// enqueued before the CPU knows how many entries it holds: that is the header's `count`, which
/// only the device reads. The first `count` places hold the entries, in ascending order; the others
/// are undefined. Indices carry survived bits as in csrc/base/sparse_block.h.
///
/// The header also carries whatever a rank must learn about the others. Merging combines headers so
/// that after the rounds of a collective all ranks hold the same facts.

#pragma once

#include <cstdint>

#include "csrc/base/types.h"
#include "csrc/base/verdict.h"

namespace hvd_sparse::cuda {

/// Bits of DeviceBlockHeader::flags. A merged block has the flags of both.
enum BlockFlag : std::uint32_t {
  kSumNotFinite = 1,  ///< a sum is not finite
  kDisagree = 2,      ///< blocks of different buckets or steps have met
  kMalformed = 4,     ///< positions do not ascend, or a count exceeds its capacity
};

struct DeviceBlockHeader {
  std::uint32_t count = 0;
  std::uint32_t flags = 0;
  Verdict verdict;  ///< on the gradients; sums that are not finite are a flag
  std::uint32_t bucket = 0, step = 0, asked = 0;
  std::uint32_t unused[2] = {};  ///< so that what follows is as aligned as the header
};
static_assert(sizeof(DeviceBlockHeader) == 32);

/// A view of a block; all memory lies on the device.
struct DeviceBlock {
  DeviceBlockHeader* header = nullptr;
  Index* indices = nullptr;
  float* values = nullptr;
  std::int64_t capacity = 0;

  /// Capacities are multiples of this, so that values are as aligned as the header.
  static constexpr std::int64_t kUnit = 64;

  /// Returns the smallest capacity for so many entries.
  static std::int64_t CapacityFor(std::int64_t entries) {
    return (entries + kUnit - 1) / kUnit * kUnit;
  }
  static std::int64_t BytesFor(std::int64_t capacity) {
    return static_cast<std::int64_t>(sizeof(DeviceBlockHeader)) + 8 * capacity;
  }

  /// Returns the block in memory of BytesFor(capacity) bytes, aligned for float4.
  static DeviceBlock In(void* memory, std::int64_t capacity) {
    auto* const header = static_cast<DeviceBlockHeader*>(memory);
    auto* const indices = reinterpret_cast<Index*>(header + 1);
    return {header, indices, reinterpret_cast<float*>(indices + capacity), capacity};
  }

  void* message() const { return header; }
  std::int64_t message_bytes() const { return BytesFor(capacity); }

  /// Returns how many entries there are, but never more than `capacity`. On the device only.
  HVD_SPARSE_INLINE std::uint32_t CountOnDevice() const {
    const auto most = static_cast<std::uint32_t>(capacity);
    const std::uint32_t count = header->count;
    return count < most ? count : most;
  }
};

}  // namespace hvd_sparse::cuda

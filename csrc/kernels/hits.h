/// Finding hits: the few entries of a large array that satisfy a condition, 64 entries at a time.
///
/// The hits of a block are first only counted, which is vectorised; most blocks have none. If there
/// are any, a bit mask locates them, so that work per entry is done for hits only.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/clones.h"

namespace hvd_sparse::cpu {

/// Entries of a block: few enough that most blocks hold no hit at the usual densities.
constexpr std::int64_t kBlock = 64;

template <typename IsHit>
HVD_SPARSE_INLINE std::int32_t CountHits(const float* dense, std::int64_t size, IsHit is_hit) {
  std::int32_t count = 0;
  for (std::int64_t i = 0; i < size; ++i) count += is_hit(dense[i]) ? 1 : 0;
  return count;
}

/// Returns a mask whose bit i is set if entry i of the block is a hit; size <= kBlock.
template <typename IsHit>
HVD_SPARSE_INLINE std::uint64_t MaskOfHits(const float* block, std::int64_t size, IsHit is_hit) {
  std::uint8_t flags[kBlock] = {};
  if (size == kBlock) {
    for (std::int64_t i = 0; i < kBlock; ++i) flags[i] = is_hit(block[i]) ? 1 : 0;
  } else {
    for (std::int64_t i = 0; i < size; ++i) flags[i] = is_hit(block[i]) ? 1 : 0;
  }
  std::uint64_t mask = 0;
  for (int byte = 0; byte < 8; ++byte) {
    std::uint64_t eight;  // 0 or 1 in each byte; the product gathers them in the highest one
    std::memcpy(&eight, flags + std::ptrdiff_t{8} * byte, sizeof(eight));
    mask |= (eight * 0x0102040810204080u) >> 56 << (8 * byte);
  }
  return mask;
}

/// Calls visit(i) for every hit, in order; returns the number of hits.
template <typename IsHit, typename Visit>
HVD_SPARSE_INLINE std::int64_t ForEachHit(const float* dense, std::int64_t size, IsHit is_hit,
                                          Visit visit) {
  std::int64_t count = 0;
  for (std::int64_t start = 0; start < size; start += kBlock) {
    const float* block = dense + start;
    const std::int64_t length = std::min(kBlock, size - start);
    const std::int32_t hits =
        length == kBlock ? CountHits(block, kBlock, is_hit) : CountHits(block, length, is_hit);
    if (hits == 0) continue;
    count += hits;
    for (std::uint64_t mask = MaskOfHits(block, length, is_hit); mask != 0; mask &= mask - 1) {
      visit(start + __builtin_ctzll(mask));
    }
  }
  return count;
}

}  // namespace hvd_sparse::cpu

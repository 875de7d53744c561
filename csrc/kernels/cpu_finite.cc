#include "csrc/kernels/cpu_finite.h"

#include <algorithm>
#include <cstdint>

namespace hvd_sparse::cpu {
namespace {

/// Returns true if all numbers are finite: not all bits of the exponent are set. Blocks have no
/// branches inside, so that the loop is vectorised.
template <typename Bits>
bool AllFinite(const Bits* bits, std::int64_t numel, Bits exponent) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, numel);
    int found = 0;
    for (std::int64_t i = begin; i < end; ++i) found |= (bits[i] & exponent) == exponent;
    if (found != 0) return false;
  }
  return true;
}

}  // namespace

bool AllFinite(GradView gradient) {
  const void* const data = gradient.data;
  switch (gradient.dtype) {
    case DType::kFloat32:
      return AllFinite<std::uint32_t>(static_cast<const std::uint32_t*>(data), gradient.numel,
                                      0x7f800000u);
    case DType::kFloat64:
      return AllFinite<std::uint64_t>(static_cast<const std::uint64_t*>(data), gradient.numel,
                                      0x7ff0000000000000u);
    case DType::kFloat16:
      return AllFinite<std::uint16_t>(static_cast<const std::uint16_t*>(data), gradient.numel,
                                      0x7c00u);
    case DType::kBFloat16:
      return AllFinite<std::uint16_t>(static_cast<const std::uint16_t*>(data), gradient.numel,
                                      0x7f80u);
  }
  return false;
}

}  // namespace hvd_sparse::cpu

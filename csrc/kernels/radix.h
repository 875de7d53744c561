/// The step that radix selects share: which digit does the k-th largest entry have?

#ifndef HVD_SPARSE_KERNELS_RADIX_H_
#define HVD_SPARSE_KERNELS_RADIX_H_

#include <array>
#include <cstdint>

namespace hvd_sparse::cpu {

/// Magnitudes have 31 bits: an upper digit of 11 bits and two lower ones of 10.
constexpr int kUpperBits = 11, kLowerBits = 10;
constexpr std::uint32_t kLowerMask = (1u << kLowerBits) - 1;

using Histogram = std::array<std::uint32_t, 1 << kUpperBits>;

/// Histograms that take turns: neighbours often have equal digits, and an increment would have to
/// wait for the one before.
using Turns = std::array<Histogram, 4>;

inline const Histogram& AddUp(Turns* turns) {
  for (std::size_t i = 0; i < turns->front().size(); ++i) {
    (*turns)[0][i] += (*turns)[1][i] + (*turns)[2][i] + (*turns)[3][i];
  }
  return turns->front();
}

/// The digit of the k-th largest entry; takes the entries with larger digits off k. 0 when there
/// are fewer than k entries.
inline std::uint32_t FindDigit(const Histogram& histogram, std::int64_t* k) {
  std::uint32_t digit = histogram.size() - 1;
  while (digit > 0 && histogram[digit] < *k) *k -= histogram[digit--];
  return digit;
}

}  // namespace hvd_sparse::cpu

#endif  // HVD_SPARSE_KERNELS_RADIX_H_

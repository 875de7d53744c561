/// The step shared by radix selects: finding the digit of the k-th largest entry.

#pragma once

#include <array>
#include <cstdint>

namespace hvd_sparse::cpu {

/// Magnitudes have 31 bits: an upper digit of 11 bits and two lower ones of 10.
constexpr int kUpperBits = 11, kLowerBits = 10;
constexpr std::uint32_t kLowerMask = (1u << kLowerBits) - 1;

using Histogram = std::array<std::uint32_t, 1 << kUpperBits>;

/// Histograms used in turn: neighbours often have equal digits, and two increments of one counter
/// would have to wait for each other.
using Turns = std::array<Histogram, 4>;

inline const Histogram& AddUp(Turns* turns) {
  for (std::size_t i = 0; i < turns->front().size(); ++i) {
    (*turns)[0][i] += (*turns)[1][i] + (*turns)[2][i] + (*turns)[3][i];
  }
  return turns->front();
}

/// Returns the digit of the k-th largest entry, or 0 if there are fewer than k entries; subtracts
/// the number of entries with larger digits from k.
inline std::uint32_t FindDigit(const Histogram& histogram, std::int64_t* k) {
  std::uint32_t digit = histogram.size() - 1;
  while (digit > 0 && histogram[digit] < *k) *k -= histogram[digit--];
  return digit;
}

}  // namespace hvd_sparse::cpu

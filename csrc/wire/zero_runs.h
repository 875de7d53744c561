/// Bytes of which runs of zeros are shortened: the last step of ternary_coding.h.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/wire/codes.h"
#include "csrc/wire/words.h"

namespace hvd_sparse {

constexpr std::uint8_t kRunBase = 241;  ///< + length: the byte that stands for a run
constexpr std::int64_t kMostRun = 14;   ///< the longest run that one byte stands for

/// Writes bytes of at most 242. It needs no more room than they take.
class RunWriter {
 public:
  explicit RunWriter(std::uint8_t* to) : at_(to) {}

  /// Appends the first `count` of 64 bytes; the others must be kZeroByte.
  HVD_SPARSE_INLINE void Put(const std::uint8_t* bytes, std::int64_t count) {
    std::uint64_t others = OthersOf(bytes);
    if (others == ~std::uint64_t{0}) {
      PutZeros();
      std::memcpy(at_, bytes, 64);
      at_ += 64;
      return;
    }
    std::int64_t done = 0;
    for (; others != 0; others &= others - 1) {
      const std::int64_t next = __builtin_ctzll(others);
      zeros_ += next - done;
      PutZeros();
      *at_++ = bytes[next];
      done = next + 1;
    }
    zeros_ += count - done;
  }

  /// Writes what is left, and returns the end of all that was written.
  std::uint8_t* Finish() {
    if (zeros_ > 0) PutZeros();
    return at_;
  }

 private:
  /// Returns a bit for each of 64 bytes, set unless the byte is kZeroByte.
  static HVD_SPARSE_INLINE std::uint64_t OthersOf(const std::uint8_t* bytes) {
#if defined(__x86_64__)
    const __m128i zero = _mm_set1_epi8(kZeroByte);
    std::uint64_t zeros = 0;
    for (int part = 0; part < 4; ++part) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes) + part);
      const auto equal = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(some, zero)));
      zeros |= std::uint64_t{equal} << (16 * part);
    }
    return ~zeros;
#else
    constexpr std::uint64_t kOnes = 0x0101010101010101u, kLow = 0x7f * kOnes;
    constexpr std::uint64_t kGather = 0x0102040810204080u;  // moves bit 8 i to bit 56 + i
    std::uint64_t others = 0;
    for (int part = 0; part < 8; ++part) {
      const std::uint64_t differing = Load(bytes + 8 * part) ^ (kZeroByte * kOnes);
      const std::uint64_t marked = ((differing & kLow) + kLow) | differing;
      others |= ((marked >> 7 & kOnes) * kGather >> 56) << (8 * part);
    }
    return others;
#endif
  }

  /// Writes the zeros that are counted; without any, changes the next byte to be written. Only the
  /// loop for long runs is a branch.
  HVD_SPARSE_INLINE void PutZeros() {
    for (; zeros_ > kMostRun; zeros_ -= kMostRun) *at_++ = kRunBase + kMostRun;
    constexpr int kOfOne = kRunBase + 1 - kZeroByte;  // a single zero stands for itself
    *at_ = static_cast<std::uint8_t>(kRunBase + zeros_ - kOfOne * static_cast<int>(zeros_ == 1));
    at_ += static_cast<int>(zeros_ > 0);
    zeros_ = 0;
  }

  std::uint8_t* at_;
  std::int64_t zeros_ = 0;  ///< bytes that are not yet written
};

/// Reads what a RunWriter has written.
class RunReader {
 public:
  static constexpr std::int64_t kSlack = 16;  ///< room that Read needs beyond what it reads

  RunReader(const std::uint8_t* from, std::int64_t bytes) : at_(from), end_(from + bytes) {}

  /// Reads `count` bytes; returns false if there are fewer.
  HVD_SPARSE_INLINE bool Read(std::int64_t count, std::uint8_t* to) {
    std::memset(to, kZeroByte, kSlack);
    std::int64_t read = zeros_;
    while (read < count && at_ < end_) {
      const int byte = *at_++, is_run = static_cast<int>(byte > kRunBase + 1);
      std::memset(to + read, kZeroByte, kSlack);
      to[read] = static_cast<std::uint8_t>(byte + is_run * (kZeroByte - byte));
      read += 1 + is_run * (byte - kRunBase - 1);
    }
    zeros_ = read - count;
    return read >= count;
  }

  /// Returns true if all has been read.
  bool IsAtEnd() const { return at_ == end_ && zeros_ == 0; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
  std::int64_t zeros_ = 0;  ///< bytes of the last run that are not yet read, fewer than kMostRun
};

}  // namespace hvd_sparse

#include "csrc/wire/ternary_coding.h"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "csrc/kernels/half.h"
#include "csrc/wire/codes.h"
#include "csrc/wire/words.h"
#include "csrc/wire/zero_runs.h"

namespace hvd_sparse {
namespace {

constexpr int kDigits = Ternary::kPerByte, kBytes = 4;  // digits of a byte, bytes of a word
constexpr std::int64_t kWords = Ternary::kWords;
constexpr std::int64_t kBlockBytes = kBytes * kWords, kBlock = kDigits * kBlockBytes;
constexpr std::uint32_t kOnes = 0x01010101u;
constexpr std::int64_t kTile = 16;  // blocks that are decoded together

/// Precedes the bytes of a message.
struct Header {
  std::uint32_t scale;  ///< M, as bits
  std::uint32_t bytes;  ///< of the code
};
static_assert(sizeof(Header) == kTernaryHeader);

/// Writes the header of a code that ends at `end`; returns the bytes written.
HVD_SPARSE_INLINE std::int64_t Close(float scale, const std::uint8_t* end, std::uint8_t* code) {
  const Header header{FloatBits(scale), static_cast<std::uint32_t>(end - code - kTernaryHeader)};
  std::memcpy(code, &header, sizeof(header));
  return end - code;
}

/// Writes the bytes of a block, and replaces its values by their errors.
HVD_SPARSE_INLINE void TakeBlock(float scale, float least, float* __restrict values,
                                 std::uint8_t* __restrict bytes) {
  for (std::int64_t j = 0; j < kWords; ++j) {
    std::uint32_t word = 0;
#pragma GCC unroll 5
    for (int k = 0; k < kDigits; ++k) {
      word *= 3;
#pragma GCC unroll 4
      for (int p = 0; p < kBytes; ++p) {
        float* const at = values + j + (k * kBytes + p) * kWords;
        const float value = *at;
        const std::int32_t digit = (value >= least ? 1 : 0) - (value <= -least ? 1 : 0);
        *at = value - static_cast<float>(digit) * scale;
        word += static_cast<std::uint32_t>(digit) << (8 * p);
      }
    }
    Store<std::uint32_t>(word + kZeroByte * kOnes, bytes + kBytes * j);
  }
}

/// Divides each byte, of at most 242, by 3.
HVD_SPARSE_INLINE std::uint32_t Thirds(std::uint32_t bytes) {
  constexpr std::uint32_t kEven = 0x00ff00ffu, kThird = 171;  // 171 / 512
  const std::uint32_t even = (bytes & kEven) * kThird >> 9 & 0x007f007fu;
  const std::uint32_t odd = (bytes >> 8 & kEven) * kThird >> 9 & 0x007f007fu;
  return even | odd << 8;
}

template <bool kAdds>
HVD_SPARSE_INLINE void DecodeBlock(float scale, const std::uint8_t* __restrict bytes,
                                   float* __restrict out) {
  constexpr std::uint32_t kInteger = 0x4b000000u;  // the bits of 2^23, then an integer
  for (std::int64_t j = 0; j < kWords; ++j) {
    std::uint32_t word = Load<std::uint32_t>(bytes + kBytes * j);
#pragma GCC unroll 5
    for (int k = kDigits - 1; k >= 0; --k) {
      const std::uint32_t thirds = Thirds(word), digits = word - 3 * thirds;
      word = thirds;
#pragma GCC unroll 4
      for (int p = 0; p < kBytes; ++p) {
        const std::uint32_t digit = digits >> (8 * p) & 3;
        const float value = (BitsFloat(kInteger | digit) - (0x1p23f + 1)) * scale;
        float* const at = out + j + (k * kBytes + p) * kWords;
        *at = kAdds ? *at + value : value;
      }
    }
  }
}

template <bool kAdds>
HVD_SPARSE_INLINE std::int64_t Decode(Span<const std::uint8_t> code, Span<float> out) {
  Header header;
  constexpr std::int64_t kHeader = kTernaryHeader;
  if (code.size < kHeader) return -1;
  std::memcpy(&header, code.data, sizeof(header));
  if (header.scale > FloatBits(FLT_MAX) || header.bytes > code.size - kHeader) return -1;
  const float scale = BitsFloat(header.scale);
  RunReader reader(code.data + kHeader, header.bytes);
  std::uint8_t bytes[kTile * kBlockBytes + RunReader::kSlack];
  float* block = out.data;
  for (std::int64_t left = out.size / kBlock; left > 0; left -= kTile) {
    const std::int64_t blocks = std::min(left, kTile);
    if (!reader.Read(blocks * kBlockBytes, bytes)) return -1;
    for (std::int64_t b = 0; b < blocks; ++b, block += kBlock) {
      DecodeBlock<kAdds>(scale, bytes + b * kBlockBytes, block);
    }
  }
  const std::int64_t rest = out.size % kBlock;
  if (rest > 0) {
    LastBlock<Ternary> last(rest);
    if (kAdds) last.CopyFrom(block);
    if (!reader.Read(last.bytes, bytes)) return -1;
    std::fill(bytes + last.bytes, bytes + kBlockBytes, kZeroByte);
    DecodeBlock<kAdds>(scale, bytes, last.values);
    last.CopyTo(block);
  }
  return reader.IsAtEnd() ? kHeader + std::int64_t{header.bytes} : -1;
}

}  // namespace

std::int64_t MostTernaryBytes(std::int64_t count) {
  return kTernaryHeader + BytesOf<Ternary>(count);
}

HVD_SPARSE_CLONES
std::int64_t TakeTernary(float scale, Span<float> values, std::uint8_t* code) {
  const float least = LeastSent(scale);
  RunWriter writer(code + kTernaryHeader);
  std::uint8_t bytes[kBlockBytes];
  float* block = values.data;
  for (std::int64_t left = values.size / kBlock; left > 0; --left, block += kBlock) {
    TakeBlock(scale, least, block, bytes);
    writer.Put(bytes, kBlockBytes);
  }
  const std::int64_t rest = values.size % kBlock;
  if (rest > 0) {
    LastBlock<Ternary> last(rest);
    last.CopyFrom(block);
    TakeBlock(scale, least, last.values, bytes);
    last.CopyTo(block);
    writer.Put(bytes, last.bytes);
  }
  return Close(scale, writer.Finish(), code);
}

HVD_SPARSE_CLONES
std::int64_t ShortenTernary(float scale, std::int64_t count, std::uint8_t* code) {
  RunWriter writer(code + kTernaryHeader);
  const std::uint8_t* from = code + kTernaryHeader;
  std::uint8_t bytes[kBlockBytes];  // what the writer writes may overlap what it reads
  for (std::int64_t left = BytesOf<Ternary>(count); left > 0; left -= kBlockBytes) {
    const std::int64_t some = std::min(left, kBlockBytes);
    std::copy_n(from, some, bytes);
    std::fill(bytes + some, bytes + kBlockBytes, kZeroByte);
    writer.Put(bytes, some);
    from += some;
  }
  return Close(scale, writer.Finish(), code);
}

HVD_SPARSE_CLONES
std::int64_t DecodeTernary(Span<const std::uint8_t> code, Span<float> out) {
  return Decode<false>(code, out);
}

HVD_SPARSE_CLONES
std::int64_t AddTernary(Span<const std::uint8_t> code, Span<float> sum) {
  return Decode<true>(code, sum);
}

}  // namespace hvd_sparse

/// Packs positions, see index_coding.h.

#include <cstring>

#include "csrc/base/sparse_block.h"
#include "csrc/wire/index_coding.h"
#include "csrc/wire/words.h"

namespace hvd_sparse {
namespace {

/// Writes fields of bits consecutively.
class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}

  /// Appends a field of at most 63 bits; its bits above `bits` must be zero.
  HVD_SPARSE_INLINE void Append(std::uint64_t field, int bits) {
    word_ |= field << filled_;
    filled_ += bits;
    if (filled_ < 64) return;
    Store(word_, to_);
    to_ += sizeof(word_);
    filled_ -= 64;
    word_ = field >> (bits - filled_);  // the bits that did not fit; filled_ < bits
  }

  void Finish() {
    if (filled_ > 0) Store(word_, to_);
  }

 private:
  std::uint8_t* to_;
  std::uint64_t word_ = 0;
  int filled_ = 0;
};

HVD_SPARSE_INLINE void EncodeLowsFrom(std::int64_t begin, const Index* indices,
                                      const IndexShape& shape, BitWriter* writer) {
  const int bits = shape.LowBits();
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const auto first = static_cast<std::uint32_t>(shape.first);
  for (std::int64_t i = begin; i < shape.count; ++i) {
    writer->Append((static_cast<std::uint32_t>(indices[i]) - first) & mask, bits);
  }
}

/// The word of the bit vector that is being filled. Branches on the end of a word would be
/// unpredictable, so the word is stored after each field, and arithmetic selects the bits to keep.
/// The memory must be zero at first.
struct HighWord {
  std::int64_t at = 0;
  std::uint64_t bits = 0;

  /// Sets the bits of `field`, of which the first goes to `bit` and the last to `last` < `bit` +
  /// 64.
  HVD_SPARSE_INLINE void Set(std::uint64_t field, std::int64_t bit, std::int64_t last,
                             std::uint8_t* code) {
    const std::int64_t to = bit >> 6, crosses = (last >> 6) - to;
    const int shift = static_cast<int>(bit & 63);
    bits &= 0 - static_cast<std::uint64_t>(to == at);
    bits |= field << shift;
    Store(bits, code + 8 * to);
    const std::uint64_t rest = field >> 1 >> (63 - shift);
    bits ^= (bits ^ rest) & (0 - static_cast<std::uint64_t>(crosses));
    at = to + crosses;
    Store(bits, code + 8 * at);
  }
};

HVD_SPARSE_INLINE void EncodeHighsFrom(std::int64_t begin, std::int64_t end, const Index* indices,
                                       const IndexShape& shape, HighWord* word,
                                       std::uint8_t* code) {
  const int bits = shape.LowBits();
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t bit = ((Position(indices[i]) - shape.first) >> bits) + i;
    word->Set(1, bit, bit, code);
  }
}

#if defined(__x86_64__)

constexpr std::int64_t kLanes = 16;
constexpr __mmask8 kAll = 0xff;  // g++ 12 warns about the unmasked forms

/// Returns the bitwise or of all 8 lanes.
HVD_SPARSE_AVX512 HVD_SPARSE_INLINE std::uint64_t OrOf(__m512i lanes) {
  const __m256i of_4 = _mm256_or_si256(_mm512_maskz_extracti64x4_epi64(kAll, lanes, 0),
                                       _mm512_maskz_extracti64x4_epi64(kAll, lanes, 1));
  const __m128i of_2 =
      _mm_or_si128(_mm256_castsi256_si128(of_4), _mm256_extracti128_si256(of_4, 1));
  return static_cast<std::uint64_t>(
      _mm_cvtsi128_si64(_mm_or_si128(of_2, _mm_unpackhi_epi64(of_2, of_2))));
}

/// Concatenates the low bits of two lanes and, if they fit, of four before appending them. Returns
/// the number of positions done.
HVD_SPARSE_AVX512 std::int64_t EncodeLowsAvx512(const Index* indices, const IndexShape& shape,
                                                BitWriter* out) {
  const int bits = shape.LowBits();
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((1u << bits) - 1));
  const __m512i lower = _mm512_set1_epi64(0xffffffff);
  const __m512i first = _mm512_set1_epi32(shape.first);
  const __m128i once = _mm_cvtsi32_si128(bits), twice = _mm_cvtsi32_si128(2 * bits);
  const bool in_fours = 4 * bits < 64;
  BitWriter writer = *out;
  std::int64_t i = 0;
  for (; i + kLanes <= shape.count; i += kLanes) {
    const __m512i offset = _mm512_sub_epi32(_mm512_loadu_si512(indices + i), first);
    const __m512i low = _mm512_and_si512(offset, mask);
    const __m512i odd = _mm512_maskz_srli_epi64(kAll, low, 32);
    const __m512i of_2 =
        _mm512_or_si512(_mm512_and_si512(low, lower), _mm512_maskz_sll_epi64(kAll, odd, once));
    const __m512i right = _mm512_maskz_unpackhi_epi64(kAll, of_2, of_2);
    const __m512i of_4 = _mm512_or_si512(of_2, _mm512_maskz_sll_epi64(kAll, right, twice));
    alignas(64) std::uint64_t fields[8];
    _mm512_store_si512(fields, in_fours ? of_4 : of_2);
    if (in_fours) {
      for (int field = 0; field < 8; field += 2) writer.Append(fields[field], 4 * bits);
    } else {
      for (const std::uint64_t field : fields) writer.Append(field, 2 * bits);
    }
  }
  *out = writer;
  return i;
}

/// Sets the bits of 8 positions as one field, unless they lie too far apart. Returns the number of
/// positions done.
HVD_SPARSE_AVX512 std::int64_t EncodeHighsAvx512(const Index* indices, const IndexShape& shape,
                                                 HighWord* out, std::uint8_t* code) {
  constexpr std::int64_t kGroup = 8;
  const __m128i bits = _mm_cvtsi32_si128(shape.LowBits());
  const __m512i first = _mm512_set1_epi64(shape.first);
  const __m512i positions = _mm512_set1_epi64(~kSurvivedBit);
  const __m512i one = _mm512_set1_epi64(1);
  const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  HighWord word = *out;
  std::int64_t i = 0;
  for (; i + kGroup <= shape.count; i += kGroup) {
    const auto* from = reinterpret_cast<const __m256i*>(indices + i);
    const __m512i marked = _mm512_maskz_cvtepu32_epi64(kAll, _mm256_loadu_si256(from));
    const __m512i offset = _mm512_sub_epi64(_mm512_and_si512(marked, positions), first);
    const __m512i bit = _mm512_add_epi64(_mm512_maskz_srl_epi64(kAll, offset, bits), lanes);
    const std::int64_t begin = ((Position(indices[i]) - shape.first) >> shape.LowBits()) + i;
    const std::int64_t last =
        ((Position(indices[i + kGroup - 1]) - shape.first) >> shape.LowBits()) + i + kGroup - 1;
    if (last - begin >= 64) {
      EncodeHighsFrom(i, i + kGroup, indices, shape, &word, code);
      continue;
    }
    const __m512i apart = _mm512_sub_epi64(bit, _mm512_set1_epi64(begin - i));
    const __m512i fields = _mm512_maskz_sllv_epi64(kAll, one, apart);
    word.Set(OrOf(fields), begin, last, code);
  }
  *out = word;
  return i;
}

#else

std::int64_t EncodeLowsAvx512(const Index*, const IndexShape&, BitWriter*) { return 0; }
std::int64_t EncodeHighsAvx512(const Index*, const IndexShape&, HighWord*, std::uint8_t*) {
  return 0;
}

#endif

}  // namespace

int IndexShape::LowBits() const {
  const std::int64_t places = Span() / (count > 0 ? count : 1);
  return places < 2 ? 0 : 63 - __builtin_clzll(static_cast<unsigned long long>(places));
}

void EncodeIndices(const Index* indices, const IndexShape& shape, std::uint8_t* code) {
  const bool vectors = HasAvx512();
  if (shape.LowBits() > 0) {
    BitWriter lows(code);
    const std::int64_t done = vectors ? EncodeLowsAvx512(indices, shape, &lows) : 0;
    EncodeLowsFrom(done, indices, shape, &lows);
    lows.Finish();
  }
  std::uint8_t* const highs = code + shape.LowBytes();
  std::memset(highs, 0, static_cast<std::size_t>(shape.HighBytes()));
  HighWord word;
  const std::int64_t done = vectors ? EncodeHighsAvx512(indices, shape, &word, highs) : 0;
  EncodeHighsFrom(done, shape.count, indices, shape, &word, highs);
}

}  // namespace hvd_sparse

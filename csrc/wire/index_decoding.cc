/// Unpacks positions, see index_coding.h. The bytes are not trusted: no loop writes more than
/// `count` positions, and the result is checked at the end.

#include "csrc/base/sparse_block.h"
#include "csrc/wire/index_coding.h"
#include "csrc/wire/words.h"

namespace hvd_sparse {
namespace {

/// A place in the bit vector of the high parts: `found` positions precede `bit`.
struct Scan {
  std::int64_t bit = 0, found = 0;
};

/// Sets indices[i] = high part << bits, from the scan's place on. Returns false unless there are
/// shape.count positions.
bool DecodeHighs(const std::uint8_t* code, const IndexShape& shape, Scan scan, Index* indices) {
  const int bits = shape.LowBits();
  const std::int64_t end = 8 * shape.HighBytes();
  for (; scan.bit < end; scan.bit += 64) {
    for (std::uint64_t word = Load(code + scan.bit / 8); word != 0; word &= word - 1) {
      if (scan.found == shape.count) return false;
      const std::int64_t high = scan.bit + __builtin_ctzll(word) - scan.found;
      indices[scan.found++] = static_cast<Index>(static_cast<std::uint32_t>(high) << bits);
    }
  }
  return scan.found == shape.count;
}

/// Adds first + low bits to indices[i] for i in [begin, count). Whole words can be read, since the
/// high parts follow the low bits.
void AddLows(const std::uint8_t* code, const IndexShape& shape, std::int64_t begin,
             Index* indices) {
  const int bits = shape.LowBits();
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const auto first = static_cast<std::uint32_t>(shape.first);
  for (std::int64_t i = begin; i < shape.count; ++i) {
    const std::int64_t bit = i * bits;
    const auto low = static_cast<std::uint32_t>(Load(code + bit / 8) >> (bit & 7) & mask);
    indices[i] = static_cast<Index>(static_cast<std::uint32_t>(indices[i]) + first + low);
  }
}

#if defined(__x86_64__)

constexpr std::int64_t kLanes = 16;
constexpr __mmask16 kAll = 0xffff;  // g++ 12 warns about the unmasked forms

HVD_SPARSE_AVX512 HVD_SPARSE_INLINE __m512i Counting() {
  return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

/// Like DecodeHighs, but expands 16 bits of the bit vector at once; stops when a whole vector may
/// no longer fit into `indices`.
HVD_SPARSE_AVX512 Scan DecodeHighsAvx512(const std::uint8_t* code, const IndexShape& shape,
                                         Index* indices) {
  const __m512i lanes = Counting();
  const __m128i bits = _mm_cvtsi32_si128(shape.LowBits());
  const std::int64_t end = 8 * shape.HighBytes();
  Scan scan;
  for (; scan.bit < end && scan.found + 4 * kLanes <= shape.count; scan.bit += 64) {
    std::uint64_t word = Load(code + scan.bit / 8);
    for (int part = 0; part < 4; ++part, word >>= kLanes) {
      const auto mask = static_cast<__mmask16>(word);
      const auto base = static_cast<int>(scan.bit + part * kLanes - scan.found);
      const __m512i set = _mm512_maskz_compress_epi32(mask, lanes);
      const __m512i high = _mm512_add_epi32(_mm512_sub_epi32(set, lanes), _mm512_set1_epi32(base));
      _mm512_storeu_si512(indices + scan.found, _mm512_maskz_sll_epi32(kAll, high, bits));
      scan.found += __builtin_popcount(static_cast<std::uint16_t>(word));
    }
  }
  return scan;
}

/// Like AddLows, but for 16 positions at once: their low bits fill 2 * LowBits() bytes, which are
/// loaded at once, and each lane takes the two words that may hold its bits. Returns the number of
/// positions done.
HVD_SPARSE_AVX512 std::int64_t AddLowsAvx512(const std::uint8_t* code, std::int64_t readable,
                                             const IndexShape& shape, Index* indices) {
  const int bits = shape.LowBits();
  const __m512i starts = _mm512_maskz_mullo_epi32(kAll, Counting(), _mm512_set1_epi32(bits));
  const __m512i word = _mm512_maskz_srli_epi32(kAll, starts, 5);
  const __m512i next = _mm512_add_epi32(word, _mm512_set1_epi32(1));
  const __m512i right = _mm512_and_si512(starts, _mm512_set1_epi32(31));
  const __m512i left = _mm512_sub_epi32(_mm512_set1_epi32(32), right);
  const __m512i mask = _mm512_set1_epi32(static_cast<int>((1u << bits) - 1));
  const __m512i first = _mm512_set1_epi32(shape.first);
  std::int64_t i = 0, byte = 0;
  for (; i + kLanes <= shape.count && byte + 64 <= readable; i += kLanes, byte += 2 * bits) {
    const __m512i words = _mm512_loadu_si512(code + byte);
    const __m512i lower =
        _mm512_maskz_srlv_epi32(kAll, _mm512_maskz_permutexvar_epi32(kAll, word, words), right);
    const __m512i upper =
        _mm512_maskz_sllv_epi32(kAll, _mm512_maskz_permutexvar_epi32(kAll, next, words), left);
    const __m512i low = _mm512_and_si512(_mm512_or_si512(lower, upper), mask);
    const __m512i high = _mm512_loadu_si512(indices + i);
    _mm512_storeu_si512(indices + i, _mm512_add_epi32(_mm512_add_epi32(high, low), first));
  }
  return i;
}

#else

Scan DecodeHighsAvx512(const std::uint8_t*, const IndexShape&, Index*) { return {}; }
std::int64_t AddLowsAvx512(const std::uint8_t*, std::int64_t, const IndexShape&, Index*) {
  return 0;
}

#endif

/// Counts the ascending steps; counting, unlike an early return, lets the loop be vectorised.
template <typename Number>
HVD_SPARSE_INLINE std::int64_t CountSteps(const Index* indices, std::int64_t count, Number number) {
  std::int64_t steps = 0;
  for (std::int64_t begin = 1; begin < count;) {
    const std::int64_t end = begin + 4096 < count ? begin + 4096 : count;
    std::int32_t part = 0;
    for (; begin < end; ++begin) part += number(indices[begin - 1]) < number(indices[begin]);
    steps += part;
  }
  return steps;
}

HVD_SPARSE_CLONES
bool NumbersAscend(const Index* indices, std::int64_t count) {
  const auto number = [](Index index) __attribute__((always_inline)) { return index; };
  return CountSteps(indices, count, number) == count - 1;
}

HVD_SPARSE_CLONES
bool PositionsAscend(const Index* indices, std::int64_t count) {
  const auto position = [](Index index) __attribute__((always_inline)) { return Position(index); };
  return CountSteps(indices, count, position) == count - 1;
}

}  // namespace

bool DecodeIndices(const std::uint8_t* code, std::int64_t readable, const IndexShape& shape,
                   Index* indices) {
  if (!shape.IsPossible()) return false;
  const std::uint8_t* const highs = code + shape.LowBytes();
  const bool vectors = HasAvx512();
  const Scan scan = vectors ? DecodeHighsAvx512(highs, shape, indices) : Scan{};
  if (!DecodeHighs(highs, shape, scan, indices)) return false;
  AddLows(code, shape, vectors ? AddLowsAvx512(code, readable, shape, indices) : 0, indices);
  // Positions that ascend from the first to the last cannot lie outside.
  return indices[0] == shape.first && indices[shape.count - 1] == shape.last &&
         NumbersAscend(indices, shape.count);
}

bool Ascend(const Index* indices, std::int64_t count, std::int64_t end) {
  if (count == 0) return true;
  return Position(indices[count - 1]) < end && PositionsAscend(indices, count);
}

}  // namespace hvd_sparse

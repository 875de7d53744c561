#include "csrc/kernels/compact.h"

#include <algorithm>
#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "csrc/kernels/hits.h"

namespace hvd_sparse::cpu {
namespace {

/// Takes entries of [begin, size) after `written` others, which were taken before.
HVD_SPARSE_INLINE std::int64_t TakeOneByOne(float* dense, std::int64_t begin, std::int64_t size,
                                            float threshold, Index offset, std::int64_t written,
                                            Index* indices, float* values) {
  const auto is_above = [threshold](float x) { return std::fabs(x) > threshold; };
  ForEachHit(dense + begin, size - begin, is_above,
             [&](std::int64_t i) __attribute__((always_inline)) {
               indices[written] = offset + static_cast<Index>(begin + i);
               values[written++] = dense[begin + i];
               dense[begin + i] = 0;
             });
  return written;
}

HVD_SPARSE_CLONES
std::int64_t TakeChunkPlain(float* dense, std::int64_t size, float threshold, Index offset,
                            Index* indices, float* values) {
  return TakeOneByOne(dense, 0, size, threshold, offset, 0, indices, values);
}

}  // namespace

#if defined(__x86_64__)

namespace {

#define HVD_SPARSE_AVX2 __attribute__((target("avx2,popcnt")))

// ---- Taking, 8 entries at a time ----------------------------------------------------------------

/// For each mask of 8 lanes, the numbers of the set lanes in order, one byte each.
struct Permutations {
  std::uint64_t of[256] = {};

  constexpr Permutations() {
    for (unsigned mask = 0; mask < 256; ++mask) {
      unsigned bits = 0;
      for (std::uint64_t lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        of[mask] |= lane << bits;
        bits += 8;
      }
    }
  }
};
alignas(64) constexpr Permutations kPermutations;

struct Limit {
  __m256 threshold, magnitude_bits;
};

/// Returns all ones where an entry is above the threshold, which NaN never is.
HVD_SPARSE_AVX2 HVD_SPARSE_INLINE __m256 Above(__m256 entries, const Limit& limit) {
  return _mm256_cmp_ps(_mm256_and_ps(entries, limit.magnitude_bits), limit.threshold, _CMP_GT_OQ);
}

/// Returns a mask whose bit i is set if vector i of 16 has an entry above the threshold; above(i)
/// compares it. Saturating packs keep zero and non-zero apart.
template <typename AboveAt>
HVD_SPARSE_AVX2 HVD_SPARSE_INLINE std::uint64_t VectorsOf16(AboveAt above) {
  __m256i of_8[2];
  for (int half = 0; half < 2; ++half) {
    __m256i of_4[2];
    for (int quarter = 0; quarter < 2; ++quarter) {
      const int i = 8 * half + 4 * quarter;
      of_4[quarter] = _mm256_packs_epi16(_mm256_packs_epi32(above(i), above(i + 1)),
                                         _mm256_packs_epi32(above(i + 2), above(i + 3)));
    }
    of_8[half] = _mm256_packs_epi32(of_4[0], of_4[1]);
  }
  const __m256i none =
      _mm256_cmpeq_epi8(_mm256_packs_epi16(of_8[0], of_8[1]), _mm256_setzero_si256());
  const auto halves = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(none));
  return (halves | halves >> 16) & 0xffff;
}

/// Takes entries from the vectors in the set `vectors` only.
HVD_SPARSE_AVX2 HVD_SPARSE_INLINE std::int64_t TakeFrom(std::uint64_t vectors, float* dense,
                                                        const Limit& limit, Index offset,
                                                        Index* indices, float* values) {
  std::int64_t written = 0;
  for (; vectors != 0; vectors &= vectors - 1) {
    const int first = 8 * __builtin_ctzll(vectors);
    const __m256 entries = _mm256_loadu_ps(dense + first);
    const __m256 above = Above(entries, limit);
    const auto mask = static_cast<unsigned>(_mm256_movemask_ps(above));
    const __m256i lanes = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&kPermutations.of[mask])));
    // Stores whole vectors: the lanes beyond the hits are overwritten by the next store, or unused.
    _mm256_storeu_ps(values + written, _mm256_permutevar8x32_ps(entries, lanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indices + written),
                        _mm256_add_epi32(lanes, _mm256_set1_epi32(offset + first)));
    _mm256_storeu_ps(dense + first, _mm256_andnot_ps(above, entries));
    written += __builtin_popcount(mask);
  }
  return written;
}

HVD_SPARSE_AVX2 HVD_SPARSE_INLINE Limit LimitAt(float threshold) {
  return {_mm256_set1_ps(threshold), _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))};
}

constexpr std::int64_t kGroup = 128;  // entries of 16 vectors
static_assert(kChunk <= 8 * 64, "a set has a bit for each vector");

/// Finds the set of vectors that hold an entry above the threshold, without a branch, and then
/// takes from those vectors only.
HVD_SPARSE_AVX2 std::int64_t TakeChunkAvx2(float* dense, std::int64_t size, float threshold,
                                           Index offset, Index* indices, float* values) {
  const Limit limit = LimitAt(threshold);
  std::uint64_t vectors = 0;
  std::int64_t end = 0;
  for (; end + kGroup <= size; end += kGroup) {
    const auto above = [&](int i) HVD_SPARSE_AVX2 {
      return _mm256_castps_si256(Above(_mm256_loadu_ps(dense + end + 8 * i), limit));
    };
    vectors |= VectorsOf16(above) << (end / 8);
  }
  const std::int64_t written = TakeFrom(vectors, dense, limit, offset, indices, values);
  return TakeOneByOne(dense, end, size, threshold, offset, written, indices, values);
}

/// A gradient, which AddAndTakeChunkAvx2 adds to a residual as it is.
class Gradient {
 public:
  explicit Gradient(const float* grad) : grad_(grad) {}

  HVD_SPARSE_AVX2 HVD_SPARSE_INLINE __m256 EightAt(std::int64_t i) {
    return _mm256_loadu_ps(grad_ + i);
  }
  float At(std::int64_t i) { return grad_[i]; }
  void Restore(std::int64_t) {}

 private:
  const float* grad_;
};

/// A velocity, which AddAndTakeChunkAvx2 updates by a gradient and adds to a residual.
class Velocity {
 public:
  HVD_SPARSE_AVX2 HVD_SPARSE_INLINE Velocity(const float* grad, Momentum momentum)
      : grad_(grad),
        velocity_(momentum.velocity),
        momentum_(_mm256_set1_ps(momentum.momentum)),
        scale_(_mm256_set1_ps(momentum.scale)) {}

  HVD_SPARSE_AVX2 HVD_SPARSE_INLINE __m256 EightAt(std::int64_t i) {
    const __m256 old = _mm256_loadu_ps(velocity_ + i);
    const __m256 gained = _mm256_mul_ps(scale_, _mm256_loadu_ps(grad_ + i));
    const __m256 sum = _mm256_add_ps(_mm256_mul_ps(momentum_, old), gained);
    _mm256_store_ps(before_ + i, old);
    _mm256_storeu_ps(velocity_ + i, sum);
    return sum;
  }
  HVD_SPARSE_AVX2 HVD_SPARSE_INLINE float At(std::int64_t i) {
    before_[i] = velocity_[i];
    const float kept = _mm256_cvtss_f32(momentum_) * before_[i];
    return velocity_[i] = kept + _mm256_cvtss_f32(scale_) * grad_[i];
  }
  HVD_SPARSE_INLINE void Restore(std::int64_t size) { std::copy_n(before_, size, velocity_); }

 private:
  const float* const grad_;
  float* const velocity_;
  const __m256 momentum_, scale_;
  alignas(32) float before_[kChunk];
};

/// Compares the sums while they are in registers. Copies the residual on the way, to restore it if
/// a sum is not finite. A sum is not finite if the velocity in it is not, which is restored, too.
template <typename Added, typename... Of>
HVD_SPARSE_AVX2 std::int64_t AddAndTakeChunkAvx2(float* residual, std::int64_t size,
                                                 float threshold, Index offset, Index* indices,
                                                 float* values, Of... of) {
  Added added(of...);
  const Limit limit = LimitAt(threshold);
  alignas(32) float before[kChunk];
  std::uint64_t vectors = 0;
  __m256i largest = _mm256_setzero_si256();  // magnitude as bits: infinity and NaN are the largest
  std::int64_t end = 0;
  for (; end + kGroup <= size; end += kGroup) {
    const auto above = [&](int i) HVD_SPARSE_AVX2 {
      const __m256 old = _mm256_loadu_ps(residual + end + 8 * i);
      const __m256 sum = _mm256_add_ps(old, added.EightAt(end + 8 * i));
      const __m256 magnitude = _mm256_and_ps(sum, limit.magnitude_bits);
      _mm256_store_ps(before + end + 8 * i, old);
      _mm256_storeu_ps(residual + end + 8 * i, sum);
      largest = _mm256_max_epu32(largest, _mm256_castps_si256(magnitude));
      return _mm256_castps_si256(_mm256_cmp_ps(magnitude, limit.threshold, _CMP_GT_OQ));
    };
    vectors |= VectorsOf16(above) << (end / 8);
  }
  const __m256i infinity = _mm256_set1_epi32(0x7f800000);
  bool finite = _mm256_movemask_epi8(_mm256_cmpgt_epi32(infinity, largest)) == -1;
  for (std::int64_t i = end; i < size; ++i) {
    before[i] = residual[i];
    residual[i] += added.At(i);
    finite &= std::isfinite(residual[i]);
  }
  if (!finite) {
    std::copy_n(before, size, residual);
    added.Restore(size);
    return -1;
  }
  const std::int64_t written = TakeFrom(vectors, residual, limit, offset, indices, values);
  return TakeOneByOne(residual, end, size, threshold, offset, written, indices, values);
}

// ---- Keeping, 16 entries at a time --------------------------------------------------------------

constexpr std::int64_t kLanes = 16;

__attribute__((target("avx512f,popcnt"))) void CompactAvx512(Index* indices, float* values,
                                                             std::int64_t count, std::uint32_t cut,
                                                             Compaction* at) {
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  const __m512i cuts = _mm512_set1_epi32(static_cast<int>(cut));
  Compaction now = *at;
  for (; now.read + kLanes <= count; now.read += kLanes) {
    const __m512i value = _mm512_loadu_si512(values + now.read);
    const __m512i index = _mm512_loadu_si512(indices + now.read);
    const __m512i magnitude = _mm512_and_si512(value, magnitude_bits);
    const unsigned above = _mm512_cmpgt_epu32_mask(magnitude, cuts);
    unsigned equal = _mm512_cmpeq_epu32_mask(magnitude, cuts);
    while (__builtin_popcount(equal) > now.ties) equal &= ~(1u << (31 - __builtin_clz(equal)));
    now.ties -= __builtin_popcount(equal);
    const unsigned keep = above | equal;
    // The places that a full store overwrites beyond the kept entries have been read already.
    const auto mask = static_cast<__mmask16>(keep);
    _mm512_storeu_si512(values + now.written, _mm512_maskz_compress_epi32(mask, value));
    _mm512_storeu_si512(indices + now.written, _mm512_maskz_compress_epi32(mask, index));
    now.written += __builtin_popcount(keep);
  }
  *at = now;
}

}  // namespace

std::int64_t TakeChunk(float* dense, std::int64_t size, float threshold, Index offset,
                       Index* indices, float* values) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  const auto take = avx2 ? TakeChunkAvx2 : TakeChunkPlain;
  return take(dense, size, threshold, offset, indices, values);
}

std::int64_t AddAndTakeChunk(const float* grad, const Momentum* momentum, float* residual,
                             std::int64_t size, float threshold, Index offset, Index* indices,
                             float* values) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (!avx2) return -1;
  if (momentum == nullptr) {
    return AddAndTakeChunkAvx2<Gradient>(residual, size, threshold, offset, indices, values, grad);
  }
  return AddAndTakeChunkAvx2<Velocity>(residual, size, threshold, offset, indices, values, grad,
                                       *momentum);
}

void CompactVectors(Index* indices, float* values, std::int64_t count, std::uint32_t cut,
                    Compaction* at) {
  static const bool avx512 = __builtin_cpu_supports("avx512f");
  if (avx512) CompactAvx512(indices, values, count, cut, at);
}

#else

std::int64_t TakeChunk(float* dense, std::int64_t size, float threshold, Index offset,
                       Index* indices, float* values) {
  return TakeChunkPlain(dense, size, threshold, offset, indices, values);
}

std::int64_t AddAndTakeChunk(const float*, const Momentum*, float*, std::int64_t, float, Index,
                             Index*, float*) {
  return -1;
}

void CompactVectors(Index*, float*, std::int64_t, std::uint32_t, Compaction*) {}

#endif

}  // namespace hvd_sparse::cpu

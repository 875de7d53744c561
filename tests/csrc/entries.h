/// Entries, number types and awkward values for the tests of kernels.

#ifndef HVD_SPARSE_TESTS_CSRC_ENTRIES_H_
#define HVD_SPARSE_TESTS_CSRC_ENTRIES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <ostream>
#include <random>
#include <type_traits>
#include <vector>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/kernels/half.h"

namespace hvd_sparse {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr float kMax = std::numeric_limits<float>::max();

inline const std::vector<std::int64_t> kSizes = {0, 1, 2, 15, 63, 64, 65, 200, 1000, 70000};

struct Entry {
  Index index;
  float value;
  bool operator==(const Entry& other) const {
    return index == other.index && FloatBits(value) == FloatBits(other.value);
  }
};
using Entries = std::vector<Entry>;

inline std::ostream& operator<<(std::ostream& out, const Entry& e) {
  return out << "(" << Position(e.index) << (Survived(e.index) ? "*" : "") << ", " << e.value
             << ")";
}

inline SparseBlock MakeBlock(const Entries& entries) {
  SparseBlock block;
  block.Reset(static_cast<std::int64_t>(entries.size()));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    block.indices()[i] = entries[i].index;
    block.values()[i] = entries[i].value;
  }
  block.Finish(static_cast<std::int64_t>(entries.size()));
  return block;
}

/// Returns the entries from `first` on; `count` gives the number in a block being written.
inline Entries EntriesOf(const SparseBlock& block, std::int64_t count = -1,
                         std::int64_t first = 0) {
  Entries entries;
  for (std::int64_t i = first; i < (count < 0 ? block.count() : count); ++i) {
    entries.push_back({block.indices()[i], block.values()[i]});
  }
  return entries;
}

/// Returns success if the arrays have the same bits: 0 differs from -0, and NaN equals itself.
inline testing::AssertionResult SameBits(Span<const float> a, Span<const float> b) {
  if (a.size != b.size) {
    return testing::AssertionFailure() << "sizes " << a.size << " and " << b.size;
  }
  for (std::int64_t i = 0; i < a.size; ++i) {
    if (FloatBits(a[i]) == FloatBits(b[i])) continue;
    return testing::AssertionFailure() << "entry " << i << ": " << a[i] << " and " << b[i];
  }
  return testing::AssertionSuccess();
}

/// The number type of a gradient of T.
template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, double>     ? DType::kFloat64
                           : std::is_same_v<T, Float16>  ? DType::kFloat16
                           : std::is_same_v<T, BFloat16> ? DType::kBFloat16
                                                         : DType::kFloat32;
using GradientTypes = testing::Types<float, double, Float16, BFloat16>;

/// Values with many ties, zeros of both signs, denormals and large values.
inline std::vector<float> Awkward(std::int64_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) {
    switch (random() % 8) {
      case 0:
        value = 0.0f;
        break;
      case 1:
        value = -0.0f;
        break;
      case 2:
        value = kTiny * static_cast<float>(random() % 50);
        break;
      case 3:
        value = static_cast<float>(static_cast<int>(random() % 7) - 3);
        break;
      case 4:
        value = gaussian(random) * 1e37f;
        break;
      default:
        value = gaussian(random);
    }
  }
  return values;
}

/// Returns entries of awkward values at every third position, some with the survived bit.
inline Entries EveryThird(std::int64_t size, int seed) {
  const std::vector<float> values = Awkward(size, seed);
  Entries entries;
  for (std::int64_t i = 0; i < size; ++i) {
    entries.push_back({Marked(static_cast<Index>(3 * i), i % 5 == 0), values[i]});
  }
  return entries;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_ENTRIES_H_

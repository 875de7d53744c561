/// Dense messages in memory of exactly their size, and values for them.

#ifndef HVD_SPARSE_TESTS_CSRC_CODED_H_
#define HVD_SPARSE_TESTS_CSRC_CODED_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "csrc/wire/value_coding.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {

using Bytes = std::vector<std::uint8_t>;

inline const std::vector<DenseFormat> kFormats = {
    {Values::kFloat32}, {Values::kFloat16},    {Values::kBFloat16},      {Values::kInt8},
    {Values::kInt4},    {Values::kTernary, 1}, {Values::kTernary, 1.75f}};

/// Every length up to several blocks of int8 and int4, and lengths around blocks of ternary values
/// and around the tiles in which codes are read and written.
inline std::vector<std::int64_t> Lengths() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 0; length <= 200; ++length) lengths.push_back(length);
  for (const std::int64_t border : {320, 640, 1024, 4096, 5120, 65536}) {
    for (const std::int64_t more : {-1, 0, 1, 63}) lengths.push_back(border + more);
  }
  return lengths;
}

/// Values that are drawn for a length, of one kind each.
inline std::vector<std::vector<float>> ValuesOfLength(std::int64_t length) {
  std::mt19937 random(static_cast<std::uint32_t>(length) + 1);
  const auto drawn = [&](auto draw) {
    std::vector<float> values(static_cast<std::size_t>(length));
    std::generate(values.begin(), values.end(), draw);
    return values;
  };
  std::normal_distribution<float> gaussian;
  const auto finite = [&] {
    float value = kInf;
    while (!std::isfinite(value)) value = BitsFloat(random());
    return value;
  };
  return {
      Awkward(length, static_cast<int>(length)),
      drawn(finite),
      drawn([&] { return gaussian(random); }),
      drawn([&] { return random() % 10 == 0 ? gaussian(random) : 0.0f; }),
      drawn([&] { return kTiny * static_cast<float>(static_cast<int>(random() % 4001) - 2000); }),
      drawn([&] { return (random() % 2 == 0 ? 1 : -1) * kMax * (random() % 3 == 0 ? 1 : .7f); }),
      drawn([] { return -0.37f; }),
      drawn([] { return -0.0f; })};
}

/// A code in memory of exactly its most bytes, between others that must not change, at an odd
/// address.
inline Bytes Taken(DenseFormat format, std::vector<float>* values) {
  constexpr std::ptrdiff_t kGuard = 65;
  const auto most = MostCodeBytes(format.values, static_cast<std::int64_t>(values->size()));
  Bytes memory(static_cast<std::size_t>(2 * kGuard + most), 0xa5);
  std::int64_t not_carried = 0;
  const std::int64_t bytes = TakeCoded(format, *values, memory.data() + kGuard, &not_carried);
  EXPECT_LE(bytes, most);
  const auto first = memory.begin() + kGuard;
  EXPECT_EQ(std::count(memory.begin(), first, 0xa5), kGuard);
  EXPECT_EQ(std::count(first + most, memory.end(), 0xa5), kGuard);
  return {first, first + bytes};
}

/// Decodes bytes that lie in memory of exactly their size.
inline std::vector<float> Decoded(Values values, const Bytes& code, std::int64_t length) {
  std::vector<float> out(static_cast<std::size_t>(length), kNan);
  EXPECT_EQ(DecodeInto(values, code, out), static_cast<std::int64_t>(code.size()));
  return out;
}

/// Returns true if neither decoding nor adding takes the bytes for a code of `length` values.
inline bool Refuses(Values values, Span<const std::uint8_t> code, std::int64_t length) {
  std::vector<float> out(static_cast<std::size_t>(length));
  const Error decoding = Thrown([&] { DecodeInto(values, code, out); });
  const Error adding = Thrown([&] { AddDecoded(values, code, out); });
  const auto is_corrupt = [](const Error& error) {
    return error.kind() == ErrorKind::kExchangeFailed && Says(error, "corrupt");
  };
  EXPECT_EQ(is_corrupt(decoding), is_corrupt(adding));
  return is_corrupt(decoding);
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CODED_H_

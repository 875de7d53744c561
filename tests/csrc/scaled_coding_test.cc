/// int8 and int4 values: their scales, codes and errors.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/wire/value_coding.h"
#include "tests/csrc/coded.h"

namespace hvd_sparse {
namespace {

/// The code of int8 or int4, one value at a time.
Bytes ScaledReference(Values type, const std::vector<float>& values) {
  const int zero = type == Values::kInt8 ? 128 : 8, bits = type == Values::kInt8 ? 8 : 4;
  const int most = 129 - bits;
  Bytes code;
  for (std::size_t begin = 0; begin < values.size(); begin += 64) {
    const std::size_t count = std::min<std::size_t>(64, values.size() - begin);
    const std::size_t word_bytes = count == 64 ? 4 : 1, fields = 8 * word_bytes / bits;
    const std::size_t words = (count + fields - 1) / fields;
    const float* const block = values.data() + begin;
    int e = -126;
    const auto reaches = [&](float value) {
      return std::fabs(static_cast<double>(value)) <= std::ldexp(zero - 1, e);
    };
    while (e < most && !std::all_of(block, block + count, reaches)) ++e;
    code.push_back(static_cast<std::uint8_t>(e));
    for (std::size_t word = 0; word < words; ++word) {
      std::uint32_t bits_of_all = 0;
      for (std::size_t field = 0; field < fields; ++field) {
        const std::size_t i = field * words + word;
        const double scaled = i < count ? std::ldexp(static_cast<double>(block[i]), -e) : 0;
        const double q = std::clamp(std::nearbyint(scaled), 1.0 - zero, zero - 1.0);
        bits_of_all |= static_cast<std::uint32_t>(zero + static_cast<int>(q)) << (bits * field);
      }
      for (std::size_t byte = 0; byte < word_bytes; ++byte)
        code.push_back(bits_of_all >> (8 * byte) & 255);
    }
  }
  return code;
}

TEST(ScaledCoding, IntegersHaveTheSmallestScaleAndAreRoundedToNearest) {
  for (const Values type : {Values::kInt8, Values::kInt4}) {
    for (const std::int64_t length : Lengths()) {
      for (std::vector<float> values : ValuesOfLength(length)) {
        const Bytes expected = ScaledReference(type, values);
        ASSERT_EQ(Taken({type}, &values), expected) << NameOf(type) << ", " << length;
        ASSERT_EQ(static_cast<std::int64_t>(expected.size()), ValueBytes(type, length));
      }
    }
  }
}

TEST(ScaledCoding, ABlockOfIntegersKeepsItsScaleAtEveryBorder) {
  for (const Values type : {Values::kInt8, Values::kInt4}) {
    const auto largest = type == Values::kInt8 ? 127.0f : 7.0f;
    for (int e = -149; e < 128; ++e) {
      for (const float q : {largest, largest / 2, 0.5f, 1.0f}) {
        for (const float toward : {0.0f, q, kInf}) {
          const float value = std::nextafter(std::ldexp(q, e), toward);
          if (!std::isfinite(value)) continue;
          std::vector<float> values = {value, -value / 3, value / 2, 0.0f};
          const Bytes expected = ScaledReference(type, values);
          ASSERT_EQ(Taken({type}, &values), expected) << value;
          std::vector<float> decoded = Decoded(type, expected, 4);
          ASSERT_EQ(Taken({type}, &decoded), expected) << value;
          ASSERT_EQ(decoded, std::vector<float>(4));
        }
      }
    }
  }
}

TEST(ScaledCoding, SmallErrorsStayWithinHalfOfTheScale) {
  std::vector<float> values(64);
  for (int i = 0; i < 64; ++i) values[i] = static_cast<float>(i) / 8 - 3.95f;
  std::vector<float> errors = values;
  Taken({Values::kInt8}, &errors);
  for (const float error : errors) EXPECT_LE(std::fabs(error), 0x1p-6f);  // 4 <= 127 * 2^-5
  errors = values;
  Taken({Values::kInt4}, &errors);
  for (const float error : errors) EXPECT_LE(std::fabs(error), 0.5f);  // 4 <= 7 * 2^0
}

TEST(ScaledCoding, IntegersThatAreNoCodeAreRefused) {
  for (const Values type : {Values::kInt8, Values::kInt4}) {
    std::vector<float> values = ValuesOfLength(100)[2];
    const Bytes code = Taken({type}, &values);
    for (std::size_t at = 0; at < code.size(); ++at) {
      const bool is_exponent = at % (type == Values::kInt8 ? 65 : 33) == 0;
      Bytes wrong = code;
      wrong[at] = is_exponent ? 0x80 : 0;
      EXPECT_TRUE(Refuses(type, wrong, 100)) << at;
      if (!is_exponent) continue;
      for (int e = -128; e < 128; ++e) {
        wrong[at] = static_cast<std::uint8_t>(e);
        const bool valid = -126 <= e && e <= (type == Values::kInt8 ? 121 : 125);
        EXPECT_EQ(Refuses(type, wrong, 100), !valid) << e;
        if (!valid) continue;
        for (const float value : Decoded(type, wrong, 100)) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

}  // namespace
}  // namespace hvd_sparse

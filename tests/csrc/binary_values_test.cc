/// Binary values: all values of a block become one number, and each error is exact.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/wire/value_coding.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

constexpr Values kType = Values::kBinary;

/// Magnitudes between these, spread evenly over their binades.
struct Range {
  float least, largest;
};

const std::vector<Range> kRanges = {
    {1, 1},          {1, 2},         {0.7f, 1.3f},     {1, 0x1p10f},       {1, 0x1p23f},
    {1, 0x1p24f},    {1, 0x1p25f},   {1, 0x1p60f},     {kTiny, 3 * kTiny}, {kTiny, 0x1p-126f},
    {kTiny, 1},      {0x1p-127f, 1}, {kMax / 2, kMax}, {kMax / 3, kMax},   {1e-38f, kMax},
    {0x1p127f, kMax}};

std::vector<float> Draw(const Range& range, std::int64_t count, bool negative,
                        std::mt19937* random) {
  const float low = std::min(range.least, range.largest), high = std::max(low, range.largest);
  std::uniform_int_distribution<std::uint32_t> bits(FloatBits(low), FloatBits(high));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = BitsFloat(bits(*random)) * (negative ? -1.0f : 1.0f);
  return values;
}

struct Rounded {
  std::vector<float> values, errors;
};

Rounded RoundedOf(std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<float> errors(values.size(), -7.0f), alone = values;
  RoundValues(kType, values.data(), count, errors.data());
  RoundValues(kType, alone.data(), count, nullptr);
  EXPECT_TRUE(SameBits(values, alone));
  return {values, errors};
}

TEST(BinaryValues, TheNumberAndAnErrorAreTheValue) {
  std::mt19937 random(3);
  for (const Range& range : kRanges) {
    for (const std::int64_t count : {1, 2, 3, 10, 1000, 70000}) {
      for (const bool negative : {false, true}) {
        SCOPED_TRACE(testing::Message() << range.least << " to " << range.largest << ", " << count);
        const std::vector<float> values = Draw(range, count, negative, &random);
        const Rounded rounded = RoundedOf(values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(FloatBits(rounded.values[i]), FloatBits(rounded.values[0]));
          const double sum = double{rounded.values[i]} + double{rounded.errors[i]};
          ASSERT_EQ(sum, double{values[i]}) << rounded.values[0];
        }
      }
    }
  }
}

TEST(BinaryValues, TheNumberIsTheMeanUpToTwiceTheLeast) {
  std::mt19937 random(4);
  for (const Range& range : kRanges) {
    for (const bool negative : {false, true}) {
      const std::vector<float> values = Draw(range, 1000, negative, &random);
      double sum = 0, least = INFINITY;
      float largest = 0;
      for (const float value : values) {
        sum += std::fabs(value);
        least = std::min<double>(least, std::fabs(value));
        largest = std::max(largest, std::fabs(value));
      }
      const float rounded = RoundedOf(values).values[0];
      const double bound = std::min(sum / 1000, 2 * least);
      const double place = double{largest} - double{std::nextafter(largest, 0.0f)};
      EXPECT_LE(std::fabs(rounded), bound);
      EXPECT_GT(std::fabs(rounded), bound - 2 * place);
      EXPECT_EQ(std::signbit(rounded), negative && rounded != 0);
    }
  }
}

TEST(BinaryValues, OneValueAndEqualValuesStayWhatTheyAre) {
  for (const float value : {1.0f, -1.1f, kTiny, -kTiny, kMax, -kMax, 0x1.fffffep-127f}) {
    for (const std::size_t count : {1u, 2u, 1000u}) {
      const std::vector<float> values(count, value);
      const Rounded rounded = RoundedOf(values);
      EXPECT_TRUE(SameBits(rounded.values, values));
      EXPECT_EQ(rounded.errors, std::vector<float>(count));
    }
  }
}

TEST(BinaryValues, ZerosLeaveAllToTheErrors) {
  const std::vector<float> values = {-0.0f, -3.0f, 0.0f, -1.5f};
  const Rounded rounded = RoundedOf(values);
  for (const float value : rounded.values) EXPECT_EQ(FloatBits(value), 0u);
  EXPECT_EQ(rounded.errors, (std::vector<float>{0, -3.0f, 0, -1.5f}));
}

TEST(BinaryValues, AllTakeFourBytesAndComeBack) {
  std::mt19937 random(5);
  for (const std::int64_t count : {1, 2, 63, 1000}) {
    EXPECT_EQ(ValueBytes(kType, count), 4);
    const Rounded rounded = RoundedOf(Draw({1, 9}, count, count % 2 == 0, &random));
    std::uint8_t code[4];
    EXPECT_TRUE(EncodeValues(kType, rounded.values.data(), count, code));
    std::vector<float> decoded(rounded.values.size());
    EXPECT_TRUE(DecodeValues(kType, code, count, decoded.data()));
    EXPECT_TRUE(SameBits(decoded, rounded.values));
  }
}

TEST(BinaryValues, NoValuesTakeNoBytes) {
  EXPECT_EQ(ValueBytes(kType, 0), 0);
  RoundValues(kType, nullptr, 0, nullptr);
  EXPECT_TRUE(EncodeValues(kType, nullptr, 0, nullptr));
  EXPECT_TRUE(DecodeValues(kType, nullptr, 0, nullptr));
}

TEST(BinaryValues, ValuesOfTwoSignsOrNotFiniteStayAndDoNotTravel) {
  const std::vector<std::vector<float>> wrong = {
      {1, -1}, {kTiny, 2, -kTiny}, {kInf}, {-kInf, -1}, {kNan}, {1, kNan}, {kInf, kInf}};
  for (const std::vector<float>& values : wrong) {
    const Rounded rounded = RoundedOf(values);
    EXPECT_TRUE(SameBits(rounded.values, values));
    EXPECT_EQ(rounded.errors, std::vector<float>(values.size()));
    std::uint8_t code[4];
    EXPECT_FALSE(
        EncodeValues(kType, values.data(), static_cast<std::int64_t>(values.size()), code));
  }
}

TEST(BinaryValues, ANumberThatIsNotFiniteIsNoCode) {
  for (const float value : {kInf, -kInf, kNan}) {
    std::uint8_t code[4];
    std::memcpy(code, &value, sizeof(code));
    float decoded[3];
    EXPECT_FALSE(DecodeValues(kType, code, 3, decoded));
  }
}

}  // namespace
}  // namespace hvd_sparse

/// Rounding to the wire types: the rounding errors are known exactly.

#include "csrc/wire/value_coding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

constexpr Values kNarrow[] = {Values::kFloat16, Values::kBFloat16, Values::kInt8, Values::kInt4};
constexpr Values kScaled[] = {Values::kInt8, Values::kInt4};

/// Returns floats of any bits, infinities and NaN among them, and the awkward ones.
std::vector<float> AnyFloats() {
  std::mt19937 random(6);
  std::vector<float> values = {0.0f,    -0.0f,   kTiny,    -kTiny,   kMax,     -kMax,     kInf,
                               -kInf,   kNan,    65504,    65519,    65520,    -65520,    65535,
                               65536,   131008,  131009,   0x1p29f,  0x1p30f,  0x1p38f,   0x1.8p38f,
                               0x1p39f, 0x1p40f, 0x1p-14f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f};
  while (values.size() < 100003) values.push_back(BitsFloat(random()));
  std::uniform_real_distribution<float> near(-70000, 70000);
  while (values.size() < 200003) values.push_back(near(random));
  return values;
}

TEST(ValueCoding, ARoundedValueAndItsErrorAreTheValue) {
  for (const Values type : kNarrow) {
    const std::vector<float> values = AnyFloats();
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<float> rounded = values, again = values, errors(values.size());
    RoundValues(type, rounded.data(), count, errors.data());
    RoundValues(type, again.data(), count, nullptr);
    EXPECT_TRUE(SameBits(rounded, again));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isfinite(values[i])) {
        ASSERT_FALSE(std::isfinite(rounded[i]));
        ASSERT_EQ(errors[i], 0.0f);
        continue;
      }
      ASSERT_TRUE(std::isfinite(rounded[i])) << values[i];
      const double sum = static_cast<double>(rounded[i]) + static_cast<double>(errors[i]);
      ASSERT_EQ(sum, static_cast<double>(values[i])) << values[i];
      ASSERT_LE(std::fabs(rounded[i]), std::fabs(values[i]) * 2);
    }
  }
}

TEST(ValueCoding, RoundingIsToNearestWithinTheRange) {
  for (const float value : AnyFloats()) {
    float half = value, brain = value;
    RoundValues(Values::kFloat16, &half, 1, nullptr);
    RoundValues(Values::kBFloat16, &brain, 1, nullptr);
    if (std::fabs(value) < 65520) {
      ASSERT_EQ(half, Widen(Narrow<Float16>(value)));
    }
    if (std::isfinite(Widen(Narrow<BFloat16>(value)))) {
      ASSERT_EQ(brain, Widen(Narrow<BFloat16>(value)));
    }
  }
}

TEST(ValueCoding, ZerosAreWithoutSign) {
  for (const Values type : kNarrow) {
    float values[] = {-0.0f, 0.0f, -kTiny};
    float errors[3];
    RoundValues(type, values, 3, errors);
    for (const float value : values) EXPECT_EQ(FloatBits(value), 0u);
    EXPECT_EQ(errors[2], -kTiny);
  }
}

TEST(ValueCoding, BeyondTheRangeStandsTheLargestNumberWithAnExactError) {
  const auto rounded = [](float value) {
    RoundValues(Values::kFloat16, &value, 1, nullptr);
    return value;
  };
  EXPECT_EQ(rounded(65520), 65504);
  EXPECT_EQ(rounded(-1e6f), -65504);
  EXPECT_EQ(rounded(0x1.fffffep28f), 65504);
  EXPECT_EQ(rounded(0x1p29f), 65472);  // a multiple of 64, like every float32 from here on
  EXPECT_EQ(rounded(0x1p38f), 32768);
  EXPECT_EQ(rounded(0x1.fffffep38f), 32768);
  EXPECT_EQ(rounded(-0x1p39f), 0);
  EXPECT_EQ(rounded(kMax), 0);
  float brain = kMax;
  RoundValues(Values::kBFloat16, &brain, 1, nullptr);
  EXPECT_EQ(FloatBits(brain), 0x7f7f0000u);
}

TEST(ValueCoding, ValuesOfWhichNothingIsCarriedAreCounted) {
  const std::vector<float> values{0x1.fffffep38f, -0x1p39f, 0, kMax, 1};
  EXPECT_EQ(CountNotCarried(Values::kFloat16, values), 2);
  for (const Values type : {Values::kFloat32, Values::kBFloat16, Values::kInt8}) {
    EXPECT_EQ(CountNotCarried(type, values), 0);
  }
  std::vector<float> rest = values;
  std::vector<std::uint8_t> code(10);
  std::int64_t not_carried = 0;
  TakeCoded({Values::kFloat16}, rest, code.data(), &not_carried);
  EXPECT_EQ(not_carried, 2);
  EXPECT_EQ(rest[1], values[1]);
}

TEST(ValueCoding, RoundedValuesComeBackAndOthersAreTold) {
  for (const Values type :
       {Values::kFloat32, Values::kFloat16, Values::kBFloat16, Values::kInt8, Values::kInt4}) {
    std::vector<float> values = AnyFloats();
    const auto count = static_cast<std::int64_t>(values.size());
    std::vector<std::uint8_t> code(static_cast<std::size_t>(ValueBytes(type, count)));
    EXPECT_EQ(EncodeValues(type, values.data(), count, code.data()), type == Values::kFloat32);
    RoundValues(type, values.data(), count, nullptr);
    EXPECT_TRUE(EncodeValues(type, values.data(), count, code.data()));
    std::vector<float> decoded(values.size());
    EXPECT_TRUE(DecodeValues(type, code.data(), count, decoded.data()));
    EXPECT_TRUE(SameBits(decoded, values));
  }
}

TEST(ValueCoding, RoundedIntegersStayAsLongAsTheSameOnesStandTogether) {
  for (const Values type : kScaled) {
    std::vector<float> values = Awkward(1000, 4), errors(values.size());
    RoundValues(type, values.data(), 1000, nullptr);
    std::vector<float> again = values;
    RoundValues(type, again.data(), 1000, errors.data());
    EXPECT_TRUE(SameBits(again, values));
    EXPECT_EQ(errors, std::vector<float>(1000));
    std::vector<std::uint8_t> code(2000);
    EXPECT_TRUE(EncodeValues(type, values.data(), 1000, code.data()));
    EXPECT_FALSE(EncodeValues(type, values.data() + 1, 999, code.data()));
  }
}

TEST(ValueCoding, IntegersOfSparseBlocksAreThoseOfDenseMessages) {
  for (const Values type : kScaled) {
    for (const std::int64_t count : {1, 63, 64, 65, 1000}) {
      std::vector<float> values = Awkward(count, 9), rest = values, errors = values;
      const auto bytes = static_cast<std::size_t>(ValueBytes(type, count));
      std::vector<std::uint8_t> code(bytes), expected(bytes);
      std::int64_t not_carried = 0;
      TakeCoded({type}, rest, expected.data(), &not_carried);
      RoundValues(type, values.data(), count, errors.data());
      EXPECT_TRUE(EncodeValues(type, values.data(), count, code.data()));
      EXPECT_EQ(code, expected);
      EXPECT_EQ(errors, rest);
    }
  }
}

TEST(ValueCoding, IntegersBesideValuesThatAreNotFiniteAreRoundedAsEver) {
  for (const Values type : kScaled) {
    for (const std::int64_t count : {70, 128}) {
      for (const float special : {kInf, -kInf, kNan}) {
        std::vector<float> values(static_cast<std::size_t>(count), 1.25f);
        std::vector<float> errors(values.size()), decoded(values.size());
        values[5] = values[66] = special;
        RoundValues(type, values.data(), count, errors.data());
        std::vector<std::uint8_t> code(static_cast<std::size_t>(ValueBytes(type, count)));
        EXPECT_TRUE(EncodeValues(type, values.data(), count, code.data()));
        EXPECT_TRUE(DecodeValues(type, code.data(), count, decoded.data()));
        EXPECT_TRUE(SameBits(decoded, values));
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (i == 5 || i == 66) {
            ASSERT_TRUE(std::isnan(values[i]));
            ASSERT_EQ(errors[i], 0);
          } else {
            ASSERT_EQ(values[i], 1.25f);
          }
        }
      }
    }
  }
}

TEST(ValueCoding, ScalesOutsideTheRangeAreTold) {
  for (const Values type : kScaled) {
    for (const std::size_t wrong :
         {std::size_t{0}, std::size_t{type == Values::kInt8 ? 65u : 33u}}) {
      std::vector<float> values(70, 1.0f);
      std::vector<std::uint8_t> code(100);
      EXPECT_TRUE(EncodeValues(type, values.data(), 70, code.data()));
      code[wrong] = 0x7f;
      EXPECT_FALSE(DecodeValues(type, code.data(), 70, values.data()));
    }
  }
}

TEST(ValueCoding, OtherTypesDoNotTravel) {
  for (const Values type : {static_cast<Values>(1), Values::kTernary}) {
    float value = 1;
    std::uint8_t code[8] = {};
    EXPECT_THROW(RoundValues(type, &value, 1, nullptr), Error);
    EXPECT_THROW(EncodeValues(type, &value, 1, code), Error);
    EXPECT_THROW(DecodeValues(type, code, 1, &value), Error);
    EXPECT_FALSE(IsKnown(type));
  }
  const Error error = Thrown([] { ValuesFrom("ternary"); });
  EXPECT_TRUE(Says(error, "one of float32, float16, bfloat16, int8, int4, binary; got 'ternary'"));
}

}  // namespace
}  // namespace hvd_sparse

/// Ternary values: what is sent, digits, and runs of zeros.

#include "csrc/wire/ternary_coding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "csrc/wire/zero_runs.h"
#include "tests/csrc/coded.h"

namespace hvd_sparse {
namespace {

TEST(TernaryCoding, ValuesOfAtLeastHalfOfTheLargestAreSent) {
  std::vector<float> values = {0.5f, -0.5f, 0.49f, -1.0f, 0.75f, 0.0f, 0x1.fffffep-2f};
  const Bytes code = Taken({Values::kTernary, 1}, &values);
  EXPECT_EQ(Decoded(Values::kTernary, code, 7), (std::vector<float>{1, -1, 0, -1, 1, 0, 0}));
  EXPECT_EQ(values, (std::vector<float>{-.5f, .5f, .49f, 0, -.25f, 0, 0x1.fffffep-2f}));
  values = {0.5f, -0.75f, 0.7f, -1.0f};
  const Bytes sparse = Taken({Values::kTernary, 1.5f}, &values);
  EXPECT_EQ(Decoded(Values::kTernary, sparse, 4), (std::vector<float>{0, -1.5f, 0, -1.5f}));
  EXPECT_EQ(values, (std::vector<float>{.5f, .75f, .7f, .5f}));
}

TEST(TernaryCoding, ExtremesOfTernaryValuesAreExact) {
  for (const float factor : {1.0f, 1.25f, 1.9f, 0x1.fffffep0f}) {
    for (const float largest : {kMax, 3e38f, 2e38f, 0x1p-126f, 0x1.000002p-126f, 7 * kTiny,
                                3 * kTiny, 2 * kTiny, kTiny, 1.0f}) {
      std::vector<float> values = {largest, -largest, largest / 2, -largest / 2, largest * 0.75f,
                                   0.0f,    -0.0f,    kTiny,       -kTiny};
      std::vector<float> errors = values;
      const Bytes code = Taken({Values::kTernary, factor}, &errors);
      const std::vector<float> decoded = Decoded(Values::kTernary, code, 9);
      EXPECT_GE(decoded[0], largest);
      EXPECT_EQ(decoded[5], 0);
      for (int i = 0; i < 9; ++i) EXPECT_EQ(decoded[i] + errors[i], values[i]) << largest;
    }
  }
}

/// Returns values whose code has the bytes `nonzero, run of zeros, nonzero`: a block has 64 bytes,
/// and byte 4 j + p begins with value j + 16 p of it.
std::vector<float> WithZeros(std::int64_t first, std::int64_t zeros) {
  std::vector<float> values(3 * 320);
  for (const std::int64_t byte : {first, first + zeros + 1}) {
    const std::int64_t in_block = byte % 64;
    values[static_cast<std::size_t>(byte / 64 * 320 + in_block / 4 + in_block % 4 * 16)] = -1;
  }
  return values;
}

/// Appends the bytes of a run.
void AppendRun(std::int64_t zeros, Bytes* code) {
  for (; zeros > 14; zeros -= 14) code->push_back(255);
  if (zeros == 1) code->push_back(121);
  if (zeros > 1) code->push_back(static_cast<std::uint8_t>(241 + zeros));
}

TEST(TernaryCoding, RunsOfZerosOfEveryLengthAreShortened) {
  for (const std::int64_t first : {0, 3, 40, 62, 63}) {
    for (std::int64_t zeros = 0; zeros <= 90; ++zeros) {
      const std::vector<float> values = WithZeros(first, zeros);
      std::vector<float> errors = values;
      const Bytes code = Taken({Values::kTernary, 1}, &errors);
      Bytes expected;
      AppendRun(first, &expected);
      expected.push_back(121 - 81);
      AppendRun(zeros, &expected);
      expected.push_back(121 - 81);
      AppendRun(3 * 64 - 2 - first - zeros, &expected);
      EXPECT_EQ(Bytes(code.begin() + 8, code.end()), expected) << zeros;
      EXPECT_EQ(Decoded(Values::kTernary, code, 3 * 320), values) << zeros;
    }
  }
}

TEST(TernaryCoding, BytesAreShortenedInPlace) {
  for (const std::int64_t length : Lengths()) {
    for (std::vector<float>& values : ValuesOfLength(length)) {
      const Bytes code = Taken({Values::kTernary, 1.5f}, &values);
      const auto bytes = MostTernaryBytes(length) - kTernaryHeader;
      Bytes whole(static_cast<std::size_t>(kTernaryHeader + bytes) + RunReader::kSlack);
      RunReader reader(code.data() + kTernaryHeader,
                       static_cast<std::int64_t>(code.size()) - kTernaryHeader);
      ASSERT_TRUE(reader.Read(bytes, whole.data() + kTernaryHeader));
      std::uint32_t scale = 0;
      std::memcpy(&scale, code.data(), sizeof(scale));
      whole.resize(
          static_cast<std::size_t>(ShortenTernary(BitsFloat(scale), length, whole.data())));
      EXPECT_EQ(whole, code) << length;
    }
  }
}

TEST(TernaryCoding, ZerosTakeAFewBytes) {
  std::vector<float> values(320 * 1000);
  EXPECT_LE(Taken({Values::kTernary, 1}, &values).size(), 8u + 64u * 1000u / 14u + 1u);
}

TEST(TernaryCoding, DigitsOfAByteAreInTheOrderOfTheirFields) {
  std::vector<float> values(320);
  for (int digit = 0; digit < 5; ++digit) {
    values.assign(320, 0.0f);
    values[static_cast<std::size_t>(64 * digit)] = 2;
    const Bytes code = Taken({Values::kTernary, 1}, &values);
    EXPECT_EQ(code[8], 121 + std::pow(3, 4 - digit)) << digit;
  }
}

TEST(TernaryCoding, TernaryBytesThatAreNoCodeAreRefused) {
  std::vector<float> values = ValuesOfLength(1000)[3];
  const Bytes code = Taken({Values::kTernary, 1}, &values);
  const auto refused = [](const Bytes& wrong) { return Refuses(Values::kTernary, wrong, 1000); };
  const auto with = [&](std::size_t at, std::uint32_t word) {
    Bytes wrong = code;
    std::memcpy(wrong.data() + at, &word, sizeof(word));
    return wrong;
  };
  EXPECT_FALSE(refused(code));
  for (const float largest : {kInf, -kInf, kNan, -1.0f, -0.0f}) {
    EXPECT_TRUE(refused(with(0, FloatBits(largest)))) << largest;
  }
  const auto bytes = static_cast<std::uint32_t>(code.size() - 8);
  for (const std::uint32_t wrong : {0u, bytes - 1, bytes + 1, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_TRUE(refused(with(4, wrong))) << wrong;
  }
  Bytes longer = with(4, bytes + 1);
  longer.push_back(121);
  EXPECT_TRUE(refused(longer));
  Bytes run = code;  // of zeros, beyond the last value
  run.back() = 255;
  EXPECT_TRUE(refused(run));
}

}  // namespace
}  // namespace hvd_sparse

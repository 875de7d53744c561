/// Dense messages: what is sent and what is left behind are the values, exactly; and bytes that are
/// no code are refused.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "csrc/wire/value_coding.h"
#include "tests/csrc/coded.h"

namespace hvd_sparse {
namespace {

template <typename Check>
void ForAll(Check check) {
  for (const std::int64_t length : Lengths()) {
    for (const std::vector<float>& values : ValuesOfLength(length)) {
      for (const DenseFormat format : kFormats) {
        SCOPED_TRACE(testing::Message() << NameOf(format.values) << " " << format.scale << ", "
                                        << length << " values");
        check(format, values);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DenseCoding, ADecodedValueAndItsErrorAreTheValue) {
  ForAll([](DenseFormat format, const std::vector<float>& values) {
    std::vector<float> errors = values;
    const Bytes code = Taken(format, &errors);
    const auto decoded = Decoded(format.values, code, static_cast<std::int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(std::isfinite(decoded[i])) << i;
      ASSERT_EQ(static_cast<double>(decoded[i]) + static_cast<double>(errors[i]),
                static_cast<double>(values[i]))
          << i << ": " << decoded[i] << " and " << errors[i];
      ASSERT_EQ(decoded[i] + errors[i], values[i]);
    }
  });
}

TEST(DenseCoding, AddingIsDecodingAndOneAddition) {
  ForAll([](DenseFormat format, std::vector<float> values) {
    const auto length = static_cast<std::int64_t>(values.size());
    const Bytes code = Taken(format, &values);
    const std::vector<float> decoded = Decoded(format.values, code, length);
    std::vector<float> sum = Awkward(length, 3), expected = sum;
    for (std::size_t i = 0; i < sum.size(); ++i) expected[i] += decoded[i];
    EXPECT_EQ(AddDecoded(format.values, code, sum), static_cast<std::int64_t>(code.size()));
    EXPECT_TRUE(SameBits(sum, expected));
  });
}

TEST(DenseCoding, DecodedValuesHaveTheSameCodeAndNoErrors) {
  ForAll([](DenseFormat format, std::vector<float> values) {
    if (format.scale != 1) return;
    const auto length = static_cast<std::int64_t>(values.size());
    const Bytes code = Taken(format, &values);
    std::vector<float> again = Decoded(format.values, code, length);
    EXPECT_EQ(Taken(format, &again), code);
    for (const float error : again) ASSERT_EQ(error, 0.0f);
  });
}

TEST(DenseCoding, FeedbackAndCodingInOneCallAreThoseOfTwo) {
  ForAll([](DenseFormat format, const std::vector<float>& gradient) {
    const auto length = static_cast<std::int64_t>(gradient.size());
    std::vector<float> spoilt = gradient, residual = Awkward(length, 5), expected = residual;
    if (length > 2) spoilt[static_cast<std::size_t>(length / 2)] = kNan;
    const GradView view{spoilt.data(), length, DType::kFloat32};
    const std::int64_t bad = CpuKernels().Accumulate({view, 0.5f, 2, expected});
    const Bytes expected_code = Taken(format, &expected);
    Bytes code(static_cast<std::size_t>(MostCodeBytes(format.values, length)));
    std::int64_t refused = 7;
    const Feedback feedback{view, 0.5f, 2, residual};
    const auto bytes = AccumulateAndTakeCoded(format, feedback, code.data(), &refused);
    code.resize(static_cast<std::size_t>(bytes));
    EXPECT_EQ(code, expected_code);
    EXPECT_EQ(refused, 7 + bad + CountNotCarried(format.values, expected));
    EXPECT_TRUE(SameBits(residual, expected));
  });
}

TEST(DenseCoding, GradientsOfAnyTypeAreAdded) {
  std::vector<BFloat16> gradient(300, Narrow<BFloat16>(1.5f));
  std::vector<float> residual(300, 0.5f);
  Bytes code(2000);
  std::int64_t not_finite = 0;
  const GradView view{gradient.data(), 300, DType::kBFloat16};
  const Feedback feedback{view, 1, 1, residual};
  code.resize(static_cast<std::size_t>(
      AccumulateAndTakeCoded({Values::kInt8}, feedback, code.data(), &not_finite)));
  EXPECT_EQ(Decoded(Values::kInt8, code, 300), std::vector<float>(300, 2.0f));
}

TEST(DenseCoding, FloatsAreCodedAsInSparseBlocks) {
  for (const Values type : {Values::kFloat32, Values::kFloat16, Values::kBFloat16}) {
    for (std::vector<float> values : ValuesOfLength(5000)) {
      std::vector<float> rounded = values;
      const Bytes code = Taken({type}, &values);
      Bytes expected(code.size());
      std::vector<float> errors(rounded.size());
      RoundValues(type, rounded.data(), 5000, errors.data());
      EXPECT_TRUE(EncodeValues(type, rounded.data(), 5000, expected.data()));
      EXPECT_EQ(code, expected);
      EXPECT_EQ(values, errors);  // with ==, since an error of zero may have either sign
    }
  }
}

TEST(DenseCoding, ACodeThatIsCutAnywhereIsRefused) {
  for (const DenseFormat format : kFormats) {
    std::vector<float> values = ValuesOfLength(777)[2];
    const Bytes code = Taken(format, &values);
    for (std::size_t bytes = 0; bytes < code.size(); ++bytes) {
      const std::unique_ptr<std::uint8_t[]> cut(new std::uint8_t[bytes]);
      std::copy_n(code.begin(), bytes, cut.get());
      const Span<const std::uint8_t> span(cut.get(), static_cast<std::int64_t>(bytes));
      ASSERT_TRUE(Refuses(format.values, span, 777)) << NameOf(format.values) << " " << bytes;
    }
  }
}

TEST(DenseCoding, ACodeEndsWhereItSays) {
  for (const DenseFormat format : kFormats) {
    std::vector<float> first = ValuesOfLength(333)[2], second = ValuesOfLength(100)[2], out(100);
    Bytes both = Taken(format, &first);
    const auto length = static_cast<std::int64_t>(both.size());
    const Bytes next = Taken(format, &second);
    both.insert(both.end(), next.begin(), next.end());
    EXPECT_EQ(DecodeInto(format.values, both, first), length);
    const Span<const std::uint8_t> rest(both.data() + length,
                                        static_cast<std::int64_t>(next.size()));
    EXPECT_EQ(DecodeInto(format.values, rest, out), rest.size);
    EXPECT_TRUE(SameBits(out, Decoded(format.values, next, 100)));
  }
}

TEST(DenseCoding, FloatsThatAreNotFiniteAreRefused) {
  for (const Values type : {Values::kFloat32, Values::kFloat16, Values::kBFloat16}) {
    for (const float special : {kInf, -kInf, kNan}) {
      for (const std::int64_t at : {0, 7, 99}) {
        std::vector<float> values = ValuesOfLength(100)[2];
        values[static_cast<std::size_t>(at)] = special;
        Bytes code(400);
        EncodeValues(type, values.data(), 100, code.data());
        EXPECT_TRUE(Refuses(type, code, 100)) << NameOf(type) << " " << special;
      }
    }
  }
}

TEST(DenseCoding, TypesAreKnownByName) {
  for (const DenseFormat format : kFormats) {
    EXPECT_EQ(DenseValuesFrom(NameOf(format.values)), format.values);
  }
  const Error unknown = Thrown([] { DenseValuesFrom("int2"); });
  EXPECT_TRUE(Says(unknown, "float32, float16, bfloat16, int8, int4, ternary; got 'int2'"));
  const Error number = Thrown([] { TakeCoded({static_cast<Values>(1)}, {}, nullptr, nullptr); });
  EXPECT_TRUE(Says(number, "no value is sent as number 1"));
}

}  // namespace
}  // namespace hvd_sparse

/// The promises of every sparsifier, whatever the data; the names and options of all of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "tests/csrc/kernel_threads.h"
#include "tests/csrc/segment.h"

namespace hvd_sparse {
namespace {

/// A sparsifier's promise: `bounds` as in hvd_sparse/sparsifiers.py, in thirds of k.
struct Promise {
  std::string name;
  SparsifierOptions options;
  std::int64_t least, most;
  bool largest;        ///< takes the largest entries
  bool zeros = false;  ///< takes zeros like other values
};

void PrintTo(const Promise& promise, std::ostream* out) { *out << promise.name; }

const std::vector<Promise> kPromises = {
    {"top_k", {}, 3, 3, true},
    {"gaussian", {{"refresh", 2}}, 2, 4, true},
    {"sampled", {}, 2, 4, true},
    {"sidco", {}, 2, 4, true},
    {"hard_threshold", {{"threshold", 0.5}}, 0, 3, true},
    {"random_k", {{"seed", 3}}, 3, 3, false, true},
    {"one_sign", {}, 0, 3, false},
};

class Sparsifiers : public testing::TestWithParam<Promise> {
 protected:
  Segment MakeSegment(std::int64_t size) const {
    return Segment(GetParam().name, size, GetParam().options);
  }

  void ExpectKept(const Step& step, std::int64_t k) const {
    const Promise& promise = GetParam();
    EXPECT_LE(3 * step.count(), promise.most * k);
    const bool no_more = promise.largest && step.count() == step.NonZeros();
    EXPECT_TRUE(3 * step.count() >= promise.least * k || no_more)
        << step.count() << " of " << step.NonZeros() << " non-zeros, k " << k;
    if (promise.largest) ExpectLargestEntries(step);
  }
};

TEST_P(Sparsifiers, KeepTheirPromisesOnAllKindsOfData) {
  for (const auto& [name, draw] : kDistributions) {
    for (const std::int64_t size : {1, 2, 10, 1000, 70000}) {
      Gradients gradients(draw, size);
      for (const double density : {0.001, 0.01, 0.3, 1.0}) {
        const std::int64_t k = KOf(density, size);
        SCOPED_TRACE(testing::Message() << name << ", size " << size << ", k " << k);
        Segment segment = MakeSegment(size);
        for (int step = 0; step < 4; ++step) ExpectKept(segment.Run(gradients.Next(), k), k);
      }
    }
  }
}

TEST_P(Sparsifiers, TakeZerosOnlyIfTheyDoNotLookAtValues) {
  for (const std::int64_t size : {1, 64, 70000}) {
    const std::int64_t k = (size + 1) / 2;
    Segment segment = MakeSegment(size);
    for (int step = 0; step < 3; ++step) {
      const Step zeros = segment.Run(std::vector<float>(size, -0.0f), k);
      EXPECT_EQ(zeros.count(), GetParam().zeros ? k : 0);
    }
  }
}

TEST_P(Sparsifiers, TakeAllNonZerosWhereThereAreTooFew) {
  if (!GetParam().largest) return;
  std::vector<float> sparse(70000, 0.0f);
  for (std::size_t i = 0; i < sparse.size(); i += 7000) sparse[i] = -2.0f;
  Segment segment = MakeSegment(70000);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(segment.Run(sparse, 700).count(), 10);
}

TEST_P(Sparsifiers, SurviveEqualMagnitudes) {
  for (const std::int64_t size : {3, 1000, 300000}) {
    const std::vector<float> constant(size, -3.0f);
    const std::vector<float> integers = Make([](auto& r) { return std::round(Gauss(r)); }, size);
    const std::vector<float> signs = Make([](auto& r) { return r() % 2 == 0 ? 1 : -1; }, size);
    for (const auto* gradient : {&constant, &integers, &signs}) {
      const std::int64_t k = (size + 99) / 100;
      Segment segment = MakeSegment(size);
      for (int step = 0; step < 4; ++step) ExpectKept(segment.Run(*gradient, k), k);
    }
  }
}

TEST_P(Sparsifiers, SurviveAnyRememberedState) {
  constexpr std::int64_t kSize = 20000, kK = 200;
  const float big = std::numeric_limits<float>::max();
  Gradients gradients(Gauss, kSize);
  Segment clean = MakeSegment(kSize);
  for (int step = 0; step < 2; ++step) clean.Run(gradients.Next(), kK);
  for (float SelectionState::* field : {&SelectionState::threshold, &SelectionState::growth,
                                        &SelectionState::tail_index, &SelectionState::own}) {
    const bool used = clean.state.*field != 0;
    for (const float value : {-1.0f, -big, kInf, -kInf, kNan, 1e-45f, 1e38f, big, 0.5f}) {
      Segment segment = MakeSegment(kSize);
      segment.Run(gradients.Next(), kK);
      segment.state.*field = value;
      SCOPED_TRACE(testing::Message() << "a field of the state is " << value);
      for (int step = 0; step < 3; ++step) ExpectKept(segment.Run(gradients.Next(), kK), kK);
      if (used) {
        EXPECT_TRUE(std::isfinite(segment.state.*field)) << "and stays so";
      }
    }
  }
}

TEST_P(Sparsifiers, KeepWhatIsNotFiniteOut) {
  constexpr std::int64_t kSize = 5000, kK = 50;
  Gradients gradients(Gauss, kSize);
  Segment segment = MakeSegment(kSize);
  for (int step = 0; step < 4; ++step) {
    std::vector<float> gradient = gradients.Next();
    gradient[17] = kNan;
    gradient[4000] = -kInf;
    const Step result = segment.Run(gradient, kK);
    EXPECT_EQ(result.not_finite, 2);
    ExpectKept(result, kK);
  }
}

TEST_P(Sparsifiers, KeepTheirPromisesWhereGradientsShareASegment) {
  constexpr std::int64_t kSize = 90000;
  Gradients gradients(StudentT3, kSize);
  for (const std::int64_t k : {90, 900, 45000}) {
    Segment segment = MakeSegment(kSize);
    for (int step = 0; step < 4; ++step) {
      ExpectKept(segment.Run(gradients.Next(), k, {1, 0, 69999, 511, 19489, 0}), k);
    }
  }
}

TEST_P(Sparsifiers, ChooseTheSameWithAnyNumberOfThreads) {
  constexpr std::int64_t kSize = 200000;
  for (const std::int64_t k : {200, 60000}) {
    std::vector<Step> expected;
    WithOneToThreeThreads([&] {
      Gradients gradients(Gauss, kSize);
      Segment segment = MakeSegment(kSize);
      for (std::size_t step = 0; step < 4; ++step) {
        const float scale = step == 2 ? 100.0f : 1.0f;  // exceeds the room of most
        const Step result = segment.Run(gradients.Next(scale), k);
        if (expected.size() <= step) expected.push_back(result);
        EXPECT_EQ(result.taken, expected[step].taken);
        EXPECT_TRUE(SameBits(result.residual, expected[step].residual));
      }
    });
  }
}

TEST_P(Sparsifiers, ChooseTheSameInEveryRun) {
  constexpr std::int64_t kSize = 50000;
  Segment one = MakeSegment(kSize), other = MakeSegment(kSize);
  Gradients gradients(Laplace, kSize);
  for (int step = 0; step < 5; ++step) {
    const std::vector<float> gradient = gradients.Next();
    EXPECT_EQ(one.Run(gradient, 500).taken, other.Run(gradient, 500).taken);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Sparsifiers, testing::ValuesIn(kPromises),
                         [](const auto& info) { return info.param.name; });

// ---- Names and options --------------------------------------------------------------------------

TEST(MakeSparsifier, KnowsExactlyThosePromisedHere) {
  std::vector<std::string> promised;
  for (const Promise& promise : kPromises) promised.push_back(promise.name);
  EXPECT_EQ(SparsifierNames(), promised);
}

/// Returns the error with which MakeSparsifier refuses.
std::string Refusal(const std::string& name, const SparsifierOptions& options) {
  try {
    MakeSparsifier(name, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "(not refused)";
}

TEST(MakeSparsifier, NamesThoseThatExist) {
  EXPECT_EQ(Refusal("best_k", {}),
            "sparsifier must be one of top_k, gaussian, sampled, sidco, hard_threshold, random_k, "
            "one_sign; got 'best_k'");
}

TEST(MakeSparsifier, RefusesOptionsThatASparsifierDoesNotHave) {
  for (const Promise& promise : kPromises) {
    SparsifierOptions options = promise.options;
    options["zeal"] = 1;
    EXPECT_EQ(Refusal(promise.name, options),
              "sparsifier '" + promise.name + "' has no option 'zeal'");
  }
  EXPECT_EQ(Refusal("top_k", {{"seed", 1}}), "sparsifier 'top_k' has no option 'seed'");
}

TEST(MakeSparsifier, RefusesOptionsOutOfTheirLimits) {
  EXPECT_EQ(Refusal("gaussian", {{"refresh", 0.5}}), "refresh of gaussian must be >= 1, got 0.5");
  EXPECT_EQ(Refusal("gaussian", {{"refresh", kNan}}), "refresh of gaussian must be >= 1, got nan");
  for (const char* value : {"0", "-0.5", "1.5", "nan", "inf"}) {
    EXPECT_EQ(Refusal("sampled", {{"fraction", std::stod(value)}}),
              std::string("fraction of sampled must lie in (0, 1], got ") + value);
  }
  EXPECT_EQ(Refusal("hard_threshold", {}), "option threshold of the sparsifier must be given");
  for (const char* value : {"0", "-1", "nan", "inf", "1e-60", "1e+60"}) {
    EXPECT_EQ(
        Refusal("hard_threshold", {{"threshold", std::stod(value)}}),
        std::string("threshold of hard_threshold must be > 0 and finite in float32, got ") + value);
  }
  for (const char* value : {"0.5", "nan", "inf", "-1e+17"}) {
    EXPECT_EQ(Refusal("random_k", {{"seed", std::stod(value)}}),
              std::string("seed of random_k must be an integer in [-2^53, 2^53], got ") + value);
  }
}

TEST(MakeSparsifier, AcceptsOptionsAtTheirLimits) {
  EXPECT_NE(MakeSparsifier("gaussian", {{"refresh", 1}}), nullptr);
  EXPECT_NE(MakeSparsifier("gaussian", {{"refresh", kInf}}), nullptr);
  EXPECT_NE(MakeSparsifier("sampled", {{"fraction", 1}}), nullptr);
  EXPECT_NE(MakeSparsifier("hard_threshold", {{"threshold", 1.5e-45}}), nullptr);
  EXPECT_NE(MakeSparsifier("random_k", {{"seed", -9007199254740992.0}}), nullptr);
}

}  // namespace
}  // namespace hvd_sparse

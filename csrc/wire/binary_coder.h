/// The values of sparse blocks as one number: that of sparse binary compression.
///
/// Sattler et al., "Sparse binary compression", IJCNN 2019, https://arxiv.org/abs/1805.08768.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "csrc/base/types.h"
#include "csrc/kernels/half.h"
#include "csrc/wire/codes.h"

namespace hvd_sparse {

class BinaryCoder {
 public:
  /// All values become one number, with their sign. Its magnitude is their mean, but at most twice
  /// the least, rounded down to a multiple of the last place of the largest. Values of both signs,
  /// or of which one is not finite, stay as they are, with errors of zero.
  static void Round(Span<float> values, float* errors) {
    const Facts facts = FactsOf(values);
    if (values.size == 0 || !facts.AreOfOneSign()) {
      if (errors != nullptr) std::fill_n(errors, values.size, 0.0f);
      return;
    }
    const float magnitude = MagnitudeOf(facts, values.size);
    const float rounded = facts.negative && magnitude > 0 ? -magnitude : magnitude;
    for (std::int64_t i = 0; errors != nullptr && i < values.size; ++i) {
      errors[i] = values[i] - rounded;
    }
    std::fill_n(values.data, values.size, rounded);
  }

  /// Returns true if all values are the same finite number.
  static bool Encode(Span<const float> values, std::uint8_t* code) {
    if (values.size == 0) return true;
    std::memcpy(code, values.data, sizeof(float));
    const std::uint32_t first = FloatBits(values[0]);
    std::uint32_t different = 0;
    for (const float value : values) different |= FloatBits(value) ^ first;
    return different == 0 && IsFiniteNumber(values[0]);
  }

  /// Returns false if the number is not finite.
  template <Into>
  static bool Decode(const std::uint8_t* code, Span<float> out) {
    if (out.size == 0) return true;
    float value;
    std::memcpy(&value, code, sizeof(value));
    std::fill_n(out.data, out.size, value);
    return IsFiniteNumber(value);
  }

 private:
  /// Facts of values, by which they become one number.
  struct Facts {
    double sum = 0;  ///< of magnitudes, added in order
    float least = INFINITY, largest = 0;
    bool negative = false, positive = false;

    bool AreOfOneSign() const { return std::isfinite(sum) && !(negative && positive); }
  };

  static Facts FactsOf(Span<const float> values) {
    Facts facts;
    for (const float value : values) {
      const float magnitude = std::fabs(value);
      facts.sum += double{magnitude};
      facts.least = std::min(facts.least, magnitude);
      facts.largest = std::max(facts.largest, magnitude);
      facts.negative |= value < 0;
      facts.positive |= value > 0;
    }
    return facts;
  }

  /// Returns the distance from a finite magnitude to the next one, as long as they have its
  /// exponent.
  static double LastPlaceOf(float magnitude) {
    const auto exponent = static_cast<int>(FloatBits(magnitude) >> 23);
    return std::ldexp(1.0, std::max(exponent, 1) - 150);
  }

  /// Returns s, the one magnitude of all values.
  ///
  /// The error v - s of a magnitude v is exact. If v < s, that is since s <= 2 v (Sterbenz's
  /// lemma). Otherwise v and s are multiples of v's last place, and so is their difference, which
  /// is <= v.
  static float MagnitudeOf(const Facts& facts, std::int64_t count) {
    const double least = facts.least, largest = facts.largest;
    const double mean = std::clamp(facts.sum / static_cast<double>(count), least, largest);
    const double place = LastPlaceOf(facts.largest);
    return static_cast<float>(std::floor(std::min(mean, 2 * least) / place) * place);
  }
};

}  // namespace hvd_sparse

#include "csrc/wire/binary_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "csrc/kernels/half.h"

namespace hvd_sparse {
namespace {

/// Facts of values, by which they become one number.
struct Facts {
  double sum = 0;  ///< of magnitudes, added in order
  float least = INFINITY, largest = 0;
  bool negative = false, positive = false;

  bool AreOfOneSign() const { return std::isfinite(sum) && !(negative && positive); }
};

Facts FactsOf(const float* values, std::int64_t count) {
  Facts facts;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(values[i]);
    facts.sum += double{magnitude};
    facts.least = std::min(facts.least, magnitude);
    facts.largest = std::max(facts.largest, magnitude);
    facts.negative |= values[i] < 0;
    facts.positive |= values[i] > 0;
  }
  return facts;
}

/// Returns the distance from a finite magnitude to the next one, as long as they have its exponent.
double LastPlaceOf(float magnitude) {
  const auto exponent = static_cast<int>(FloatBits(magnitude) >> 23);
  return std::ldexp(1.0, std::max(exponent, 1) - 150);
}

/// Returns s, the one magnitude of all values.
///
/// The error v - s of a magnitude v is exact. If v < s, that is since s <= 2 v (Sterbenz's lemma).
/// Otherwise v and s are multiples of v's last place, and so is their difference, which is <= v.
float MagnitudeOf(const Facts& facts, std::int64_t count) {
  const double least = facts.least, largest = facts.largest;
  const double mean = std::clamp(facts.sum / static_cast<double>(count), least, largest);
  const double place = LastPlaceOf(facts.largest);
  return static_cast<float>(std::floor(std::min(mean, 2 * least) / place) * place);
}

}  // namespace

void RoundToBinary(float* values, std::int64_t count, float* errors) {
  const Facts facts = FactsOf(values, count);
  if (count == 0 || !facts.AreOfOneSign()) {
    if (errors != nullptr) std::fill_n(errors, count, 0.0f);
    return;
  }
  const float magnitude = MagnitudeOf(facts, count);
  const float rounded = facts.negative && magnitude > 0 ? -magnitude : magnitude;
  for (std::int64_t i = 0; errors != nullptr && i < count; ++i) errors[i] = values[i] - rounded;
  std::fill_n(values, count, rounded);
}

bool EncodeBinary(const float* values, std::int64_t count, std::uint8_t* code) {
  if (count == 0) return true;
  std::memcpy(code, values, sizeof(float));
  const std::uint32_t first = FloatBits(values[0]);
  std::uint32_t different = 0;
  for (std::int64_t i = 1; i < count; ++i) different |= FloatBits(values[i]) ^ first;
  return different == 0 && std::isfinite(values[0]);
}

bool DecodeBinary(const std::uint8_t* code, std::int64_t count, float* values) {
  if (count == 0) return true;
  float value;
  std::memcpy(&value, code, sizeof(value));
  std::fill_n(values, count, value);
  return std::isfinite(value);
}

}  // namespace hvd_sparse

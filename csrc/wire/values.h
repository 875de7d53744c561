/// The types in which values travel, by the names of the option `values`.

#pragma once

#include <cfloat>
#include <cstdint>
#include <string>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// A type of values on the wire; equal on every rank. The numbers are part of the wire format.
enum class Values : std::uint8_t {
  kFloat32 = 0,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,     ///< 8 bits, and 8 for the scale of each kScaledBlock values
  kInt4 = 5,     ///< 4 bits, and 8 for the scale of each kScaledBlock values
  kTernary = 6,  ///< at most 8 bits for 5 values; dense messages only
  kBinary = 7,   ///< 32 bits for all values of a block, which are equal; sparse blocks only
};

/// Values of type int8 and int4 that share a scale.
constexpr std::int64_t kScaledBlock = 64;

/// Returns the bytes of `count` values of a type in which the values themselves do not matter: any
/// but ternary.
constexpr std::int64_t ValueBytes(Values values, std::int64_t count) {
  const std::int64_t scales = (count + kScaledBlock - 1) / kScaledBlock;
  switch (values) {
    case Values::kFloat32:
      return 4 * count;
    case Values::kInt8:
      return scales + count;
    case Values::kInt4:
      return scales + (count + 1) / 2;
    case Values::kBinary:
      return count > 0 ? 4 : 0;
    default:
      return 2 * count;
  }
}

/// Returns the largest magnitude of which a code of the type carries a part, with an exact error.
/// From 2^39 on the last place of a float32 exceeds all numbers of float16.
constexpr float LargestCarried(Values values) {
  return values == Values::kFloat16 ? 0x1.fffffep38f : FLT_MAX;
}

/// Returns the type's name, or "unknown" for a number that stands for none.
const char* NameOf(Values values);

/// Returns true if a sparse block may say that its values are of this type.
bool IsKnown(Values values);

/// Returns the type of that name for sparse blocks; throws InvalidArgument, with all names, if
/// there is none.
Values ValuesFrom(const std::string& name);

/// Like ValuesFrom, but for dense messages, or for messages of any kind.
Values DenseValuesFrom(const std::string& name);
Values AnyValuesFrom(const std::string& name);

/// Throws InvalidArgument because no function serves the type.
[[noreturn]] void RefuseType(Values values);

}  // namespace hvd_sparse

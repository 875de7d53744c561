/// The types in which values travel, by the names of the option `values`.

#ifndef HVD_SPARSE_WIRE_VALUES_H_
#define HVD_SPARSE_WIRE_VALUES_H_

#include <cstdint>
#include <string>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// A type of values on the wire; equal on every rank. The numbers are part of the wire format.
enum class Values : std::uint8_t { kFloat32 = 0, kFloat16 = 2, kBFloat16 = 3 };

/// Returns the bytes of one value.
constexpr std::int64_t SizeOf(Values values) { return values == Values::kFloat32 ? 4 : 2; }

/// Returns the type's name, or "unknown values" for a number that stands for none.
const char* NameOf(Values values);

/// Returns true if a message may say that its values are of this type.
bool IsKnown(Values values);

/// Returns the type of that name; throws InvalidArgument, with all names, if there is none.
Values ValuesFrom(const std::string& name);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_VALUES_H_

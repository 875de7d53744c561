#include "csrc/wire/values.h"

#include <algorithm>
#include <array>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

enum Kinds : std::uint8_t { kInBlocks = 1, kInDense = 2, kInAll = 3 };

struct Named {
  Values values;
  const char* name;
  Kinds kinds;  ///< of messages that may have such values
};

constexpr std::array kValues = {
    Named{Values::kFloat32, "float32", kInAll},   Named{Values::kFloat16, "float16", kInAll},
    Named{Values::kBFloat16, "bfloat16", kInAll}, Named{Values::kInt8, "int8", kInAll},
    Named{Values::kInt4, "int4", kInAll},         Named{Values::kTernary, "ternary", kInDense},
    Named{Values::kBinary, "binary", kInBlocks},
};

const Named* Find(Values values) {
  const auto* const found = std::find_if(kValues.begin(), kValues.end(),
                                         [&](const Named& one) { return one.values == values; });
  return found == kValues.end() ? nullptr : found;
}

Values Find(const std::string& name, Kinds kinds) {
  std::string known;
  for (const Named& one : kValues) {
    if ((one.kinds & kinds) == 0) continue;
    if (name == one.name) return one.values;
    known += Concat(known.empty() ? "" : ", ", one.name);
  }
  Throw(ErrorKind::kInvalidArgument, "values must be one of ", known, "; got '", name, "'");
}

}  // namespace

const char* NameOf(Values values) {
  const Named* const found = Find(values);
  return found == nullptr ? "unknown" : found->name;
}

bool IsKnown(Values values) {
  const Named* const found = Find(values);
  return found != nullptr && (found->kinds & kInBlocks) != 0;
}

Values ValuesFrom(const std::string& name) { return Find(name, kInBlocks); }

Values DenseValuesFrom(const std::string& name) { return Find(name, kInDense); }

Values AnyValuesFrom(const std::string& name) { return Find(name, kInAll); }

void RefuseType(Values values) {
  Throw(ErrorKind::kInvalidArgument, "no value is sent as number ",
        int{static_cast<std::uint8_t>(values)});
}

}  // namespace hvd_sparse

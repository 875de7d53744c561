#include "csrc/wire/values.h"

#include <algorithm>
#include <array>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

struct Named {
  Values values;
  const char* name;
  bool in_blocks;  ///< true if sparse blocks may have such values
};

constexpr std::array kValues = {
    Named{Values::kFloat32, "float32", true},   Named{Values::kFloat16, "float16", true},
    Named{Values::kBFloat16, "bfloat16", true}, Named{Values::kInt8, "int8", true},
    Named{Values::kInt4, "int4", true},         Named{Values::kTernary, "ternary", false},
};

const Named* Find(Values values) {
  const auto* const found = std::find_if(kValues.begin(), kValues.end(),
                                         [&](const Named& one) { return one.values == values; });
  return found == kValues.end() ? nullptr : found;
}

Values Find(const std::string& name, bool in_blocks) {
  std::string known;
  for (const Named& one : kValues) {
    if (in_blocks && !one.in_blocks) continue;
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
  return found != nullptr && found->in_blocks;
}

Values ValuesFrom(const std::string& name) { return Find(name, true); }

Values DenseValuesFrom(const std::string& name) { return Find(name, false); }

void RefuseType(Values values) {
  Throw(ErrorKind::kInvalidArgument, "no value is sent as number ",
        int{static_cast<std::uint8_t>(values)});
}

}  // namespace hvd_sparse

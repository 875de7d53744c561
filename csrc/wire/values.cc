#include "csrc/wire/values.h"

#include <algorithm>
#include <array>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

struct Named {
  Values values;
  const char* name;
};

constexpr std::array kValues = {
    Named{Values::kFloat32, "float32"},
    Named{Values::kFloat16, "float16"},
    Named{Values::kBFloat16, "bfloat16"},
};

const Named* Find(Values values) {
  const auto* const found = std::find_if(kValues.begin(), kValues.end(),
                                         [&](const Named& one) { return one.values == values; });
  return found == kValues.end() ? nullptr : found;
}

}  // namespace

const char* NameOf(Values values) {
  const Named* const found = Find(values);
  return found == nullptr ? "unknown values" : found->name;
}

bool IsKnown(Values values) { return Find(values) != nullptr; }

Values ValuesFrom(const std::string& name) {
  std::string known;
  for (const Named& one : kValues) {
    if (name == one.name) return one.values;
    known += Concat(known.empty() ? "" : ", ", one.name);
  }
  Throw(ErrorKind::kInvalidArgument, "values must be one of ", known, "; got '", name, "'");
}

}  // namespace hvd_sparse

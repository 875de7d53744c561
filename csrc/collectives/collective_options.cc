#include "csrc/collectives/collective_options.h"

#include <algorithm>
#include <cmath>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

struct Option {
  const char* name;
  double CollectiveOptions::* value;
  double least;
  double below;
};

constexpr Option kOptions[] = {
    {"slack", &CollectiveOptions::slack, 1, HUGE_VAL},
    {"sums", &CollectiveOptions::sums, 1, HUGE_VAL},
    {"bad_ranks", &CollectiveOptions::bad_ranks, 1, 1 << 20},
    {"scale", &CollectiveOptions::scale, 1, 2},
};

}  // namespace

CollectiveOptions CollectiveOptions::From(const std::map<std::string, double>& by_name) {
  CollectiveOptions options;
  for (const auto& [name, value] : by_name) {
    const auto* const found =
        std::find_if(std::begin(kOptions), std::end(kOptions),
                     [&name = name](const Option& one) { return name == one.name; });
    Require(found != std::end(kOptions), "no collective has an option '", name, "'");
    options.*found->value = value;
  }
  return options;
}

void CollectiveOptions::Check(const std::string& owner) const {
  for (const Option& one : kOptions) {
    const double value = this->*one.value;
    Require(one.least <= value && value < one.below, owner, ": ", one.name, " must lie in [",
            one.least, ", ", one.below, "), got ", value);
  }
}

std::string CollectiveOptions::Describe() const {
  std::string text;
  for (const Option& one : kOptions) {
    text += Concat(text.empty() ? "" : ", ", one.name, " ", this->*one.value);
  }
  return text;
}

bool CollectiveOptions::operator==(const CollectiveOptions& other) const {
  return std::all_of(std::begin(kOptions), std::end(kOptions),
                     [&](const Option& one) { return this->*one.value == other.*one.value; });
}

}  // namespace hvd_sparse

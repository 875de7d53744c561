/// All sparsifiers, by name.

#include <array>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/builtin.h"

namespace hvd_sparse {
namespace {

using Entry = std::pair<const char*, const Sparsifier& (*)()>;

constexpr std::array<Entry, 2> kSparsifiers{{
    {"top_k", TopKSparsifier},
    {"gaussian", GaussianSparsifier},
}};

}  // namespace

std::vector<std::string> SparsifierNames() {
  std::vector<std::string> names;
  names.reserve(kSparsifiers.size());
  for (const auto& [name, get] : kSparsifiers) names.emplace_back(name);
  return names;
}

const Sparsifier& FindSparsifier(const std::string& name) {
  std::string known;
  for (const auto& [other, get] : kSparsifiers) {
    if (name == other) return get();
    known += Concat(known.empty() ? "" : ", ", other);
  }
  Throw(ErrorKind::kInvalidArgument, "sparsifier must be one of ", known, "; got '", name, "'");
}

}  // namespace hvd_sparse

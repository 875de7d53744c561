/// All sparsifiers, by name.

#include <algorithm>
#include <array>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/builtin.h"

namespace hvd_sparse {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<const Sparsifier> (*make)(const SparsifierOptions&);
  const char* option;  ///< its only option, or nullptr
};

constexpr std::array<Entry, 7> kSparsifiers{{
    {"top_k", MakeTopK, nullptr},
    {"gaussian", MakeGaussian, "refresh"},
    {"sampled", MakeSampled, "fraction"},
    {"sidco", MakeSidco, nullptr},
    {"hard_threshold", MakeHardThreshold, "threshold"},
    {"random_k", MakeRandomK, "seed"},
    {"one_sign", MakeOneSign, nullptr},
}};

}  // namespace

std::vector<std::string> SparsifierNames() {
  std::vector<std::string> names;
  names.reserve(kSparsifiers.size());
  for (const Entry& entry : kSparsifiers) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<const Sparsifier> MakeSparsifier(const std::string& name,
                                                 const SparsifierOptions& options) {
  std::string known;
  for (const Entry& entry : kSparsifiers) {
    known += Concat(known.empty() ? "" : ", ", entry.name);
    if (name != entry.name) continue;
    for (const auto& [option, value] : options) {
      Require(entry.option != nullptr && option == entry.option, "sparsifier '", name,
              "' has no option '", option, "'");
    }
    return entry.make(options);
  }
  Throw(ErrorKind::kInvalidArgument, "sparsifier must be one of ", known, "; got '", name, "'");
}

}  // namespace hvd_sparse

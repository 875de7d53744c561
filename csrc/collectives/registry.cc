/// The collectives by name.

#include <array>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse {
namespace {

const Allgather kAllgather;
const GTopK kGTopK;
const Hierarchical kHierarchical;
const RecursiveDoubling kRecursiveDoubling;
const SplitAllgather kSplitAllgather;

const std::array<std::pair<const char*, const SparseAllreduce*>, 5> kRegistry = {{
    {"allgather", &kAllgather},
    {"gtopk", &kGTopK},
    {"hierarchical", &kHierarchical},
    {"recursive_doubling", &kRecursiveDoubling},
    {"split_allgather", &kSplitAllgather},
}};

}  // namespace

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  names.reserve(kRegistry.size());
  for (const auto& [name, collective] : kRegistry) names.emplace_back(name);
  return names;
}

const SparseAllreduce& FindCollective(const std::string& wanted) {
  std::string known;
  for (const auto& [name, collective] : kRegistry) {
    if (wanted == name) return *collective;
    known += known.empty() ? name : std::string(", ") + name;
  }
  Throw(ErrorKind::kInvalidArgument, "collective must be one of ", known, "; got '", wanted, "'");
}

}  // namespace hvd_sparse

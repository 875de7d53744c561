/// The collectives by name.

#include <array>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse {
namespace {

using Entry = std::pair<const char*, const Collective*>;

const Allgather kAllgather;
const GTopK kGTopK;
const Hierarchical kHierarchical;
const RecursiveDoubling kRecursiveDoubling;
const ShardSums kShardSum;
const SplitAllgather kSplitAllgather;

const std::array kRegistry = {
    Entry{"allgather", &kAllgather},       Entry{"gtopk", &kGTopK},
    Entry{"hierarchical", &kHierarchical}, Entry{"recursive_doubling", &kRecursiveDoubling},
    Entry{"shard_sum", &kShardSum},        Entry{"split_allgather", &kSplitAllgather},
};

}  // namespace

std::vector<CollectiveFacts> AllCollectiveFacts() {
  std::vector<CollectiveFacts> facts;
  facts.reserve(kRegistry.size());
  for (const auto& [name, collective] : kRegistry) {
    facts.push_back({name, collective->DeliversAll(), collective->IsExact(),
                     collective->AsSparse() != nullptr});
  }
  return facts;
}

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (const auto& [name, collective] : kRegistry) {
    if (collective->AsSparse() != nullptr) names.emplace_back(name);
  }
  return names;
}

const Collective& FindCollective(const std::string& wanted) {
  std::string known;
  for (const auto& [name, collective] : kRegistry) {
    if (wanted == name) return *collective;
    known += known.empty() ? name : std::string(", ") + name;
  }
  Throw(ErrorKind::kInvalidArgument, "collective must be one of ", known, "; got '", wanted, "'");
}

}  // namespace hvd_sparse

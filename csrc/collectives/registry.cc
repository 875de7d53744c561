/// The collectives by name.

#include "csrc/base/error.h"
#include "csrc/collectives/collectives.h"

namespace hvd_sparse {

const std::vector<Collective>& AllCollectives() {
  static const std::vector<Collective> all = [] {
    std::vector<Collective> collectives = {
        // name, delivers_all, has_owners, trims, has_device_rounds, run
        {"allgather", true, false, false, true, RunAllgather},
        {"gtopk", false, false, true, true, RunGTopK},
        {"recursive_doubling", true, false, false, false, RunRecursiveDoubling},
        {"shard_sum", true, false, false, false, nullptr},
        {"shard_topk", false, true, false, true, RunShardTopK},
    };
    for (const AggregationRule& rule : AllRules()) {
      collectives.push_back({rule.name, true, false, false, false, nullptr, &rule});
    }
    return collectives;
  }();
  return all;
}

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (const Collective& one : AllCollectives()) {
    if (one.IsSparse()) names.push_back(one.name);
  }
  return names;
}

const Collective& FindCollective(const std::string& name) {
  std::string known;
  for (const Collective& one : AllCollectives()) {
    if (name == one.name) return one;
    known += Concat(known.empty() ? "" : ", ", one.name);
  }
  Throw(ErrorKind::kInvalidArgument, "collective must be one of ", known, "; got '", name, "'");
}

}  // namespace hvd_sparse

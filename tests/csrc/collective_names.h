/// The names of all collectives, for tests that hold for each of them.

#ifndef HVD_SPARSE_TESTS_CSRC_COLLECTIVE_NAMES_H_
#define HVD_SPARSE_TESTS_CSRC_COLLECTIVE_NAMES_H_

#include <string>
#include <vector>

#include "csrc/collectives/sparse_allreduce.h"

namespace hvd_sparse {

inline std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (const CollectiveFacts& facts : AllCollectiveFacts()) names.push_back(facts.name);
  return names;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_COLLECTIVE_NAMES_H_

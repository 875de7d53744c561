/// Bitwise comparison of the sparsifiers' states.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_STATES_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_STATES_H_

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

using States = std::vector<SelectionState>;

inline testing::AssertionResult SameStates(const States& a, const States& b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " segments";
  }
  for (std::size_t s = 0; s < a.size(); ++s) {
    if (std::memcmp(&a[s], &b[s], sizeof(a[s])) == 0) continue;
    return testing::AssertionFailure()
           << "segment " << s << ": " << a[s].threshold << ", " << a[s].growth << ", "
           << a[s].tail_index << ", " << a[s].own << " and " << b[s].threshold << ", "
           << b[s].growth << ", " << b[s].tail_index << ", " << b[s].own;
  }
  return testing::AssertionSuccess();
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_STATES_H_

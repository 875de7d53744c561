/// Edges of the control-flow graph that a run has taken, if the compiler was told to count them.
///
/// g++ -fsanitize-coverage=trace-pc calls a function at every edge. Without it no edge is seen, and
/// all runs look alike.

#ifndef HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_
#define HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_

#include <cstddef>

namespace hvd_sparse::fuzz {

/// Returns a lower bound of the edges seen so far: edges whose hashes collide count once.
std::size_t EdgesSeen();

}  // namespace hvd_sparse::fuzz

#endif  // HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_

/// Which edges of the program's graph a run has taken, where the compiler was told to count them.
///
/// g++ -fsanitize-coverage=trace-pc calls a function at every edge. Without it nothing is seen, and
/// every run looks like the others.

#ifndef HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_
#define HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_

#include <cstddef>

namespace hvd_sparse::fuzz {

/// How many edges have been seen so far, at least: of two that share a place, one counts.
std::size_t EdgesSeen();

}  // namespace hvd_sparse::fuzz

#endif  // HVD_SPARSE_TESTS_CSRC_FUZZ_COVERAGE_H_

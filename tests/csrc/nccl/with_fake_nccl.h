/// Tests whose exchanges find the library that stands in for NCCL, and use it.

#ifndef HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_
#define HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "csrc/cuda/nccl_library.h"
#include "tests/csrc/nccl/fake_nccl.h"

namespace hvd_sparse {

inline const char* const kFakeNccl = FAKE_NCCL_FOLDER "/libfake_nccl.so";

/// A function of the library, see fake_nccl.h.
template <typename Function>
Function* OfFakeNccl(const char* name) {
  void* const library = ::dlopen(kFakeNccl, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
#define OF_FAKE_NCCL(name) ::hvd_sparse::OfFakeNccl<decltype(name)>(#name)

class WithFakeNccl : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HVD_SPARSE_NCCL_LIBRARY", kFakeNccl, 1);
    ::setenv(nccl::kSharing, "1", 1);
    ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  }
  void TearDown() override { ::unsetenv("HVD_SPARSE_NCCL"); }
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_

/// Fixtures for tests that use the library that stands in for NCCL.

#ifndef HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_
#define HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "csrc/cuda/transport/nccl_library.h"
#include "tests/csrc/nccl/fake_nccl.h"

namespace hvd_sparse {

inline const char* const kFakeNccl = FAKE_NCCL_FOLDER "/libfake_nccl.so";

/// Returns a function of the library; see fake_nccl.h.
template <typename Function>
Function* OfFakeNccl(const char* name) {
  void* const library = ::dlopen(kFakeNccl, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}
#define OF_FAKE_NCCL(name) ::hvd_sparse::OfFakeNccl<decltype(name)>(#name)

inline bool FakeNcclIsIdle() {
  static auto* const is_idle = OF_FAKE_NCCL(fake_nccl_is_idle);
  return is_idle() != 0;
}

class WithFakeNccl : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HVD_SPARSE_NCCL_LIBRARY", kFakeNccl, 1);
    ::setenv(nccl::kSharing, "1", 1);
    ::setenv("HVD_SPARSE_NCCL", "auto", 1);
  }
  void TearDown() override {
    emulation::device_is_idle = nullptr;
    OF_FAKE_NCCL(fake_nccl_break_group)(nccl::kSuccess, 0);
    OF_FAKE_NCCL(fake_nccl_run_behind)(0);
    OF_FAKE_NCCL(fake_nccl_refuse_rank)(-1, nccl::kSuccess);
    OF_FAKE_NCCL(fake_nccl_change_messages_of)(-1);
    EXPECT_EQ(OF_FAKE_NCCL(fake_nccl_communicators)(), 0);
    for (const char* variable :
         {nccl::kSharing, "HVD_SPARSE_CUDA_AWARE_MPI", "HVD_SPARSE_TIMEOUT_SECONDS"}) {
      ::unsetenv(variable);
    }
    ::setenv("HVD_SPARSE_NCCL", "0", 1);
  }

  /// Gives groups to the device at once, so that the device waits for peers.
  static void LetTheDeviceWait() {
    OF_FAKE_NCCL(fake_nccl_run_behind)(1);
    emulation::device_is_idle = &FakeNcclIsIdle;
  }
};

/// Tests that run twice: either a call waits for peers, or the device does.
class WaitingInNccl : public WithFakeNccl, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    WithFakeNccl::SetUp();
    if (GetParam()) LetTheDeviceWait();
  }
};

inline std::string WhoWaits(const testing::TestParamInfo<bool>& run) {
  return run.param ? "OnTheDevice" : "InTheCall";
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_NCCL_WITH_FAKE_NCCL_H_

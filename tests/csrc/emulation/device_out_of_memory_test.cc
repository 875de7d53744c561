/// Whichever allocation of device or pinned memory fails, the step ends on all ranks, and its
/// residuals and velocities lose nothing.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "csrc/sparsifiers/sparsifier.h"
#include "tests/csrc/cuda/own_ranks.h"

namespace hvd_sparse {
namespace {

std::atomic<int> left{0};     // allocations, over all ranks, until one fails
std::atomic<int> failing{0};  // how many allocations fail from then on

bool HasMemory() {
  if (left-- > 0) return true;
  return failing-- <= 0;
}

/// A test case: the place of exchange, the sparsifier, and the number of failures in a row.
struct Case {
  bool between_devices;
  std::string sparsifier;
  int failures;
  std::string collective = "gtopk";

  std::string Name() const {
    return (between_devices ? "Devices_" : "Cpus_") + sparsifier + "_" + collective +
           (failures > 1 ? "_All" : "_One");
  }
};

/// Runs a step whose n-th allocation, and those after it as the case says, fail; returns true if
/// any failed.
bool FailsAt(int n, const Case& one) {
  left = n;
  failing = one.failures;
  Conditions conditions;
  conditions.sparsifier = one.sparsifier;
  conditions.collective = one.collective;
  Meeting meeting(kRanks);
  std::atomic<int> ended{0};
  OnOwnRanks(
      2, End::kAllOrUntouched,
      [&](int rank, OwnRank& own) {
        meeting.Attend();  // all memory of the test is allocated
        if (rank == 0) emulation::has_memory = &HasMemory;
        meeting.Attend();
        Thrown([&own] {
          own.StartAll();
          own.WaitForAll();
        });
        meeting.Attend();  // some ranks may need no more before another one fails
        emulation::has_memory = nullptr;
        const Error error = Thrown([&own] {
          own.exchange->Check();
          own.exchange->Commit("not today");
        });
        if (error.kind() == ErrorKind::kNonFinite) return;
        ++ended;
        EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory) << error.what();
        EXPECT_THROW(own.WaitForAll(), Error);  // started buckets leave their memory alone
      },
      conditions);
  EXPECT_TRUE(ended == 0 || ended == kRanks) << ended << " ranks have ended";
  return failing < one.failures;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int failures : {1, 1 << 20}) {
    for (const std::string& sparsifier : SparsifierNames()) {
      cases.push_back({false, sparsifier, failures});
    }
    for (const char* const collective : {"allgather", "gtopk", "shard_topk"}) {
      cases.push_back({true, "gaussian", failures, collective});
    }
    cases.push_back({false, "top_k", failures, "shard_sum"});
  }
  return cases;
}

class DeviceOutOfMemory : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().between_devices) ::setenv("HVD_SPARSE_CUDA_AWARE_MPI", "1", 1);
  }
  void TearDown() override { ::unsetenv("HVD_SPARSE_CUDA_AWARE_MPI"); }
};

TEST_P(DeviceOutOfMemory, InAnyAllocationOfAStepLosesNothing) {
  int n = 0;
  while (FailsAt(n, GetParam())) {
    ++n;
    if (HasFailure()) return;
  }
  EXPECT_GE(n, 2 * kRanks) << "of each rank, on the device and pinned";
}

INSTANTIATE_TEST_SUITE_P(Of, DeviceOutOfMemory, testing::ValuesIn(Cases()),
                         [](const auto& one) { return one.param.Name(); });

}  // namespace
}  // namespace hvd_sparse

/// HostSums waits for sums that another party forms.

#include "csrc/exchange/host_sums.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace hvd_sparse {
namespace {

TEST(HostSums, AWaitForOneStepIsNoneForTheNext) {
  ::setenv("HVD_SPARSE_TIMEOUT_SECONDS", "20", 1);
  bool looked = false;
  HostSums* own = nullptr;
  // Called on the waiting thread, which therefore has not woken in between.
  HostSums sums([&] {
    if (!looked) own->Interrupt();
    if (!looked) own->Begin(1, false);
    looked = true;
  });
  ::unsetenv("HVD_SPARSE_TIMEOUT_SECONDS");
  own = &sums;
  sums.Begin(1, false);
  EXPECT_NO_THROW(sums.Await());
  EXPECT_TRUE(looked);
}

}  // namespace
}  // namespace hvd_sparse

/// Waits with limits, even if a rank seldom gets a core.

#include "csrc/comm/patience.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

TEST(Patience, FewLooksThatAreFarApartMeetTheLimitsAsManyDo) {
  const std::string what = "bucket 3";
  WaitLimits limits;
  limits.warn_seconds = 0.05;
  limits.fail_seconds = 0.2;
  Patience patience(limits, 0, what, [] { return "1"; });
  testing::internal::CaptureStderr();
  int looks = 0;
  try {
    for (; looks < 100; ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as if others had the core
      patience.Pause();
    }
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
    EXPECT_STREQ(
        error.what(),
        "rank 0 gave up waiting for rank 1 after 0.2 s (HVD_SPARSE_TIMEOUT_SECONDS) in bucket 3");
  }
  EXPECT_LE(looks, 10);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hvd_sparse: warning: rank 0 has waited 0.05 s for rank 1 in bucket 3; it goes on "
            "waiting\n");
}

}  // namespace
}  // namespace hvd_sparse

/// Helpers for the tests of the lifeline.

#ifndef HVD_SPARSE_TESTS_CSRC_LIFELINE_TESTING_H_
#define HVD_SPARSE_TESTS_CSRC_LIFELINE_TESTING_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "csrc/comm/lifeline.h"
#include "csrc/comm/socket.h"

namespace hvd_sparse {

inline constexpr char kName[] = "optimizer.0";
inline constexpr double kNever = 1e6;  // a grace period that never ends

/// Polls until `condition` holds; returns false if it does not within `seconds`.
inline bool Eventually(const std::function<bool()>& condition, double seconds = 20) {
  for (const auto deadline = After(seconds); Clock::now() < deadline;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

/// Returns the failure that `lifeline` finally reports, as text; "(none)" if there is none.
inline std::string Report(const Lifeline& lifeline, double grace_seconds = 0) {
  std::optional<Lifeline::Failure> failure;
  Eventually([&] { return (failure = lifeline.CurrentFailure(grace_seconds)).has_value(); });
  return failure ? failure->message : "(none)";
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_LIFELINE_TESTING_H_

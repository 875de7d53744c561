#include "csrc/comm/patience.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

using std::chrono::duration;
using std::chrono::microseconds;

constexpr int kSpins = 1000;  // looks before the first sleep: a millisecond if a core is free
// A waiter that an arrival wakes loses little by sleeping early, and each look costs a call of
// poll().
constexpr int kSpinsBeforePoll = 100;

std::optional<double> SecondsFrom(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  Require(*end == '\0' && seconds >= 0, variable, " must be a number of seconds >= 0, got '", text,
          "'");
  return seconds;
}

/// Returns how long to sleep, so that the delay stays a small part of the time waited so far; but
/// while a message is arriving, short enough that the sockets' buffers run neither full nor empty.
microseconds SleepAfter(double waited_seconds, double seconds_without_progress) {
  if (waited_seconds < 2e-3) return microseconds(20);
  if (seconds_without_progress < 20e-3) return microseconds(100);
  if (seconds_without_progress < 200e-3) return microseconds(500);
  return microseconds(2000);
}

}  // namespace

WaitLimits WaitLimits::FromEnvironment(std::optional<double> group_timeout) {
  WaitLimits limits;
  limits.warn_seconds = SecondsFrom("HVD_SPARSE_STALL_SECONDS").value_or(limits.warn_seconds);
  if (const auto seconds = SecondsFrom(limits.source)) {
    limits.fail_seconds = *seconds;
  } else if (group_timeout) {
    limits.fail_seconds = *group_timeout;
    limits.source = "the timeout of the process group";
  }
  return limits;
}

std::string WaitLimits::TimeoutMessage(const std::string& what) const {
  return Concat("gave up waiting for ", what, " after ", fail_seconds, " s (", source, ")");
}

Patience::Patience(const WaitLimits& limits, int rank, const std::string& what,
                   std::function<std::string()> whom)
    : limits_(limits), rank_(rank), what_(what), whom_(std::move(whom)) {}

double Patience::CheckLimits() {
  const double waited = duration<double>(Clock::now() - start_).count();
  if (limits_.fail_seconds > 0 && waited > limits_.fail_seconds) {
    Throw(ErrorKind::kTimeout, "rank ", rank_, " ", limits_.TimeoutMessage("rank " + whom_()),
          " in ", what_);
  }
  if (!warned_ && limits_.warn_seconds > 0 && waited > limits_.warn_seconds) {
    warned_ = true;
    Warn("rank ", rank_, " has waited ", limits_.warn_seconds, " s for rank ", whom_(), " in ",
         what_, "; it goes on waiting");
  }
  return waited;
}

bool Patience::Spins(int most) {
  if (++looks_ > most) return false;
  std::this_thread::yield();
  CheckLimits();  // a yield may have given up a scarce core for milliseconds
  return true;
}

void Patience::Pause() {
  if (Spins(kSpins)) return;
  const double waited = CheckLimits();
  const double without_progress = duration<double>(Clock::now() - progress_).count();
  std::this_thread::sleep_for(SleepAfter(waited, without_progress));
}

void Patience::PauseUntilWoken(const Sleep& sleep, microseconds longest) {
  if (Spins(kSpinsBeforePoll)) return;
  sleep(std::min(longest, CheckLimits() < 20e-3 ? microseconds(1000) : microseconds(20'000)));
}

}  // namespace hvd_sparse

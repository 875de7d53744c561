#include "csrc/exchange/host_sums.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/kernels/cpu_kernels.h"

namespace hvd_sparse {

HostSums::HostSums(std::function<void()> check) : check_(std::move(check)) {}

void HostSums::Begin(std::size_t dense_ops, bool others) {
  const std::lock_guard lock(mutex_);
  ++step_;
  expected_ops_ = dense_ops;
  missing_ = dense_ops + (others ? 1 : 0);
  interrupted_ = false;
}

bool HostSums::HandedOver() {
  const std::lock_guard lock(mutex_);
  return expected_ops_ > 0 && --expected_ops_ == 0;
}

void HostSums::Arrived() {
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    if (missing_ > 0) --missing_;
    all = missing_ == 0;
  }
  if (all) came_.notify_all();
}

void HostSums::Await() {
  const double limit = limits_.fail_seconds > 0 ? limits_.fail_seconds : HUGE_VAL;
  std::size_t missing = 0;
  std::int64_t step = 0;
  {
    const std::lock_guard lock(mutex_);
    missing = missing_;
    step = step_;
  }
  double progress = SteadySeconds();
  while (!Wait(step, std::min(kWaitSlice, limit))) {
    check_();
    const double now = SteadySeconds();
    if (const std::size_t left = this->missing(); left < missing) {
      missing = left;
      progress = now;
    } else if (now - progress >= limit) {
      const std::string problem = limits_.TimeoutMessage(
          Concat(missing, " of the host's sums of gradients that are sent dense"));
      Warn(problem);
      Throw(ErrorKind::kTimeout, problem);
    }
  }
}

bool HostSums::Wait(std::int64_t step, double seconds) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return missing_ == 0 || interrupted_ || step_ != step; });
}

std::size_t HostSums::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

void HostSums::Interrupt() {
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
  }
  came_.notify_all();
}

}  // namespace hvd_sparse

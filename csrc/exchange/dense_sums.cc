#include "csrc/exchange/dense_sums.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "csrc/base/clock.h"
#include "csrc/base/error.h"
#include "csrc/base/warn.h"
#include "csrc/kernels/cpu_finite.h"

namespace hvd_sparse {

DenseSums::DenseSums(std::function<void()> check) : check_(std::move(check)) {}

void DenseSums::Begin(std::size_t passing, bool others, bool looks) {
  const std::lock_guard lock(mutex_);
  ++step_;
  passing_ = passing;
  missing_ = passing + (others ? 1 : 0);
  interrupted_ = false;
  looks_ = looks;
  finite_ = true;
}

bool DenseSums::Pass() {
  const std::lock_guard lock(mutex_);
  return passing_ > 0 && --passing_ == 0;
}

void DenseSums::Add(const std::vector<GradView>& sums) {
  bool looks = false;
  {
    const std::lock_guard lock(mutex_);
    looks = looks_;
  }
  AddSeen(!looks || std::all_of(sums.begin(), sums.end(), cpu::AllFinite));
}

void DenseSums::AddSeen(bool finite) {
  bool all = false;
  {
    const std::lock_guard lock(mutex_);
    finite_ = finite_ && (finite || !looks_);
    if (missing_ > 0) --missing_;
    all = missing_ == 0;
  }
  if (all) came_.notify_all();
}

void DenseSums::Await() {
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
      const std::string problem =
          limits_.GaveUp(Concat(missing, " of Horovod's sums of gradients that travel dense"));
      Warn(problem);
      Throw(ErrorKind::kTimeout, problem);
    }
  }
}

bool DenseSums::Wait(std::int64_t step, double seconds) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return missing_ == 0 || interrupted_ || step_ != step; });
}

std::size_t DenseSums::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

void DenseSums::Interrupt() {
  {
    const std::lock_guard lock(mutex_);
    interrupted_ = true;
  }
  came_.notify_all();
}

bool DenseSums::finite() const {
  const std::lock_guard lock(mutex_);
  return finite_;
}

std::string DenseSums::Problem() const {
  return finite() ? "" : "a sum over the ranks of gradients that travel dense is not finite";
}

}  // namespace hvd_sparse

#include "csrc/exchange/dense_sums.h"

#include <algorithm>
#include <chrono>

#include "csrc/kernels/cpu_finite.h"

namespace hvd_sparse {

void DenseSums::Begin(std::size_t expected, bool looks) {
  const std::lock_guard lock(mutex_);
  missing_ = expected;
  interrupted_ = false;
  looks_ = looks;
  finite_ = true;
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
  {
    const std::lock_guard lock(mutex_);
    finite_ = finite_ && (finite || !looks_);
    if (missing_ > 0) --missing_;
  }
  came_.notify_all();
}

bool DenseSums::Wait(double seconds) {
  std::unique_lock lock(mutex_);
  return came_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [this] { return missing_ == 0 || interrupted_; });
}

bool DenseSums::complete() const {
  const std::lock_guard lock(mutex_);
  return missing_ == 0;
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

}  // namespace hvd_sparse

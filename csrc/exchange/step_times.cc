#include "csrc/exchange/step_times.h"

#include <algorithm>
#include <limits>

#include "csrc/base/clock.h"

namespace hvd_sparse {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void StepTimer::Arrived(std::size_t piece) {
  if (arrived_[piece] == 0) arrived_[piece] = SteadySeconds();
}

StepTimes StepTimer::End() {
  const double now = SteadySeconds();
  double first = now;
  for (const double arrived : arrived_) {
    if (arrived != 0) first = std::min(first, arrived);
  }
  StepTimes times;
  times.step = last_end_ == 0 ? kUnknown : now - last_end_;
  times.forward = last_end_ == 0 ? kUnknown : first - last_end_;
  for (const double arrived : arrived_) {
    times.ready.push_back(arrived == 0 ? kUnknown : arrived - first);
  }
  last_end_ = now;
  return times;
}

}  // namespace hvd_sparse

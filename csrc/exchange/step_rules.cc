#include "csrc/exchange/step_rules.h"

#include "csrc/base/error.h"

namespace hvd_sparse {

void CheckRules(const StepRules& rules) {
  Require(rules.momentum >= 0 && rules.momentum < 1, "momentum must lie in [0, 1), got ",
          rules.momentum);
  Require(rules.device.IsCpu() || rules.momentum == 0, "momentum must be 0 for gradients on ",
          rules.device.Name(), ", since velocities join what travels dense on the CPU; got ",
          rules.momentum);
  Require(rules.device.IsCpu() || rules.measure_every == 0,
          "measure_every must be 0 for gradients on ", rules.device.Name(),
          ", since what is left behind is measured on the CPU; got ", rules.measure_every);
}

}  // namespace hvd_sparse

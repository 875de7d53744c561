#include "csrc/exchange/step_rules.h"

#include "csrc/base/error.h"

namespace hvd_sparse {

void CheckRules(const StepRules& rules) {
  Require(rules.momentum >= 0 && rules.momentum < 1, "momentum must lie in [0, 1), got ",
          rules.momentum);
}

}  // namespace hvd_sparse

/// The rules for all steps of a driver; equal on every rank, except for the device's number.

#pragma once

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// The treatment of a step in which a gradient or a sum is not finite.
enum class NonFinite {
  kRefuse,  ///< every `done` gets the error
  kMark,    ///< no error: the gradients hold NaN, and zeros, instead, on every rank alike
};

struct StepRules {
  NonFinite non_finite = NonFinite::kRefuse;
  bool has_velocity = false;       ///< true if each op has a velocity: momentum is corrected
  bool masks_velocity = true;      ///< true if the velocity of delivered entries becomes 0
  std::int64_t measure_every = 0;  ///< steps from one measured step to the next; 0: none is

  /// True if Summed is called once a step for all gradients that are always summed dense.
  bool others = false;

  Device device = {};  ///< of gradients, residual and velocity
};

}  // namespace hvd_sparse

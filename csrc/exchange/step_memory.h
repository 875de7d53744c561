/// The memory of a step, and the parts of it that belong to a bucket, or to an op that is sent
/// dense.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/exchange/dense_path.h"
#include "csrc/exchange/origin.h"
#include "csrc/exchange/step_layout.h"
#include "csrc/exchange/step_rules.h"

namespace hvd_sparse {

/// Memory as a framework hands it over. States lie in CPU memory, all else on the device of
/// `origin`.
struct StepMemory {
  Span<float> residual;         ///< of all ops that have units of selection
  Span<SelectionState> states;  ///< one per unit of selection
  float decay = 1;              ///< of the residual of gradients that are handed over without one
  Span<float> velocity = {};    ///< of all ops, if the rules say that they have one, else empty
  Origin origin = {};
  Span<float> room = {};  ///< scratch memory, of RoomFor elements
  float loss_scale = 1;   ///< of the gradients; residual and velocity have none

  // velocity = momentum * velocity + (1 - dampening) * gradient
  float momentum = 0;   ///< in [0, 1)
  float dampening = 0;  ///< in [0, 1)
};

/// Returns how many elements of scratch memory a step needs: with velocities, as many as
/// are sent dense.
std::int64_t RoomFor(const StepLayout& layout, const StepRules& rules);

/// Throws InvalidArgument unless a step can work on that memory.
void CheckMemory(const StepMemory& memory, const StepLayout& layout, const StepRules& rules);

/// Returns the residual, velocity and factors of an op that is sent dense; `decays`: of its
/// gradients' residuals.
DenseInFlight DenseInFlightOf(std::size_t op, std::vector<float> decays, const StepMemory& memory,
                              const StepLayout& layout, const StepRules& rules);

/// Returns the launch of a bucket, given the gradients of its ops and the decays of their
/// residuals, after `steps` steps.
Launch LaunchOf(std::size_t bucket, std::vector<GradView> gradients, std::vector<float> decays,
                std::int64_t steps, const StepMemory& memory, const StepLayout& layout,
                const StepRules& rules);

}  // namespace hvd_sparse

/// The rules and the memory of a step, and the parts of it that belong to a bucket, or to an op
/// that is sent dense.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/collectives/bucket_spec.h"
#include "csrc/exchange/dense_path.h"
#include "csrc/exchange/step_layout.h"

namespace hvd_sparse {

/// The treatment of a step in which a gradient or a sum is not finite.
enum class NonFinite {
  kRefuse,  ///< every `done` gets the error
  kMark,    ///< no error: the gradients hold NaN, and zeros, instead, on every rank alike
};

/// The rules for all steps of an engine; equal on every rank, except for the device's number.
struct StepRules {
  NonFinite non_finite = NonFinite::kRefuse;
  bool has_velocity = false;       ///< true if each op has a velocity: momentum is corrected
  bool masks_velocity = true;      ///< true if the velocity of delivered entries becomes 0
  std::int64_t measure_every = 0;  ///< steps from one measured step to the next; 0: none is

  /// True if Summed is called once a step for all gradients that are always summed dense.
  bool others = false;

  Device device = {};  ///< of gradients, residual and velocity
};

/// The device that holds the memory of a step, and the framework's stream that works on it.
struct Origin {
  Device device;
  StreamHandle stream = 0;  ///< of a device: the work that writes the memory is on it

  bool IsOn(Device other) const { return device.type == other.type && device.index == other.index; }
  bool operator==(const Origin& other) const {
    return IsOn(other.device) && stream == other.stream;
  }
};

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

#include "csrc/exchange/step_memory.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

void CheckFraction(const char* name, float value) {
  Require(value >= 0 && value < 1, name, " must lie in [0, 1), got ", value);
}

}  // namespace

std::int64_t RoomFor(const StepLayout& layout, const StepRules& rules) {
  return rules.has_velocity ? layout.DenseNumel() : 0;
}

void CheckMemory(const StepMemory& memory, const StepLayout& layout, const StepRules& rules) {
  layout.RequireFit({memory.residual.size, memory.states.size, memory.velocity.size},
                    rules.has_velocity);
  Require(std::isfinite(memory.decay), "decay must be finite, got ", memory.decay);
  Require(memory.loss_scale > 0 && std::isfinite(memory.loss_scale),
          "loss_scale must be finite and above 0, got ", memory.loss_scale);
  CheckFraction("momentum", memory.momentum);
  CheckFraction("dampening", memory.dampening);
  Require(memory.origin.IsOn(rules.device), "a step must lie on ", rules.device.Name(), ", got ",
          memory.origin.device.Name());
  const std::int64_t room = RoomFor(layout, rules);
  Require(memory.room.size == room, "room must have ", room, " elements, got ", memory.room.size);
}

DenseInFlight DenseInFlightOf(std::size_t op, std::vector<float> decays, const StepMemory& memory,
                              const StepLayout& layout, const StepRules& rules) {
  const StepLayout::Begin& begin = layout.begin(op);
  DenseInFlight dense;
  dense.number = op;
  dense.residual = memory.residual.Sub(begin.residual, layout.op(op).ResidualNumel());
  if (rules.has_velocity) {
    dense.velocity = memory.velocity.Sub(begin.velocity, layout.op(op).numel);
    dense.next = memory.room.Sub(layout.DenseBefore(op), layout.op(op).numel);
    dense.gain = 1 - memory.dampening;
  }
  dense.decays = std::move(decays);
  dense.momentum = memory.momentum;
  dense.scale = layout.bucket_of(op).scale / memory.loss_scale;
  dense.loss_scale = memory.loss_scale;
  return dense;
}

Launch LaunchOf(std::size_t bucket, std::vector<GradView> gradients, std::vector<float> decays,
                std::int64_t steps, const StepMemory& memory, const StepLayout& layout,
                const StepRules& rules) {
  const DrivenBucket& driven = layout.bucket(bucket);
  const auto [first, last] = layout.OpsOf(bucket);
  const StepLayout::Begin &begin = layout.begin(first), &end = layout.begin(last);
  Launch launch;
  launch.residual = memory.residual.Sub(begin.residual, end.residual - begin.residual);
  launch.states = memory.states.Sub(begin.state, end.state - begin.state);
  launch.scale = driven.scale / memory.loss_scale;
  if (rules.has_velocity) {
    launch.velocity = memory.velocity.Sub(begin.velocity, end.velocity - begin.velocity);
    launch.masks_velocity = rules.masks_velocity;
    launch.momentum = memory.momentum;
    launch.scale *= 1 - memory.dampening;
  }
  launch.decays = std::move(decays);
  launch.gradients = std::move(gradients);
  const auto later = std::find_if(driven.ks.begin(), driven.ks.end(),
                                  [steps](const auto& phase) { return phase.first > steps; });
  launch.ks = std::prev(later)->second;
  launch.output_scale = driven.output_scale * memory.loss_scale;
  launch.loss_scale = memory.loss_scale;
  launch.stream = memory.origin.stream;
  return launch;
}

}  // namespace hvd_sparse

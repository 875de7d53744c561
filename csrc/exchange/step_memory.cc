#include "csrc/exchange/step_memory.h"

#include <cmath>
#include <utility>

#include "csrc/base/error.h"

namespace hvd_sparse {

std::int64_t RoomFor(const StepLayout& layout, const StepRules& rules) {
  return rules.momentum > 0 ? layout.PassingNumel() : 0;
}

void CheckMemory(const StepMemory& memory, const StepLayout& layout, const StepRules& rules) {
  layout.RequireFit({memory.residual.size, memory.states.size, memory.velocity.size},
                    rules.momentum > 0);
  Require(std::isfinite(memory.decay), "decay must be finite, got ", memory.decay);
  Require(memory.origin.IsOn(rules.device), "a step must lie on ", rules.device.Name(), ", got ",
          memory.origin.device.Name());
  const std::int64_t room = RoomFor(layout, rules);
  Require(memory.room.size == room, "room must have ", room, " elements, got ", memory.room.size);
}

Passage::Piece PassageOf(std::size_t piece, const StepMemory& memory, const StepLayout& layout,
                         const StepRules& rules) {
  const StepLayout::Begin& begin = layout.begin(piece);
  Passage::Piece along;
  along.number = piece;
  along.residual = memory.residual.Sub(begin.residual, layout.piece(piece).owed());
  if (rules.momentum > 0) {
    along.velocity = memory.velocity.Sub(begin.velocity, layout.piece(piece).numel);
    along.next = memory.room.Sub(layout.PassedBefore(piece), layout.piece(piece).numel);
  }
  along.decay = memory.decay;
  along.momentum = rules.momentum;
  along.scale = layout.bucket_of(piece).scale;
  return along;
}

Launch LaunchOf(std::size_t bucket, std::vector<GradView> gradients, std::int64_t steps,
                const StepMemory& memory, const StepLayout& layout, const StepRules& rules) {
  const DrivenBucket& driven = layout.bucket(bucket);
  const auto [first, last] = layout.PiecesOf(bucket);
  const StepLayout::Begin &begin = layout.begin(first), &end = layout.begin(last);
  Launch launch;
  launch.residual = memory.residual.Sub(begin.residual, end.residual - begin.residual);
  launch.states = memory.states.Sub(begin.state, end.state - begin.state);
  if (rules.momentum > 0) {
    launch.velocity = memory.velocity.Sub(begin.velocity, end.velocity - begin.velocity);
  }
  launch.momentum = rules.momentum;
  launch.decays.assign(gradients.size(), memory.decay);
  launch.gradients = std::move(gradients);
  launch.ks = driven.KsAt(steps);
  launch.scale = driven.scale;
  launch.output_scale = driven.output_scale;
  launch.stream = memory.origin.stream;
  return launch;
}

}  // namespace hvd_sparse

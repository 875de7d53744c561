#include "csrc/exchange/op_states.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "csrc/base/sparse_block.h"
#include "csrc/devices/kernels_for.h"

namespace hvd_sparse {

void OpStates::Begin() {
  for (State& state : states_) state.sent_dense = false;
}

bool OpStates::SendDense(std::size_t op) { return !std::exchange(states_[op].sent_dense, true); }

bool OpStates::Take(std::size_t op, std::vector<GradView>&& gradients, std::vector<float>&& decays,
                    Done&& done) {
  State& here = states_[op];
  if (here.taken) return false;
  here.taken = true;
  here.gradients = std::move(gradients);
  here.decays = std::move(decays);
  here.done = std::move(done);
  return true;
}

bool OpStates::Any() const {
  return std::any_of(states_.begin(), states_.end(), [](const State& one) { return one.taken; });
}

bool OpStates::HasAll(std::size_t first, std::size_t end) const {
  const State* const states = states_.data();
  return std::all_of(states + first, states + end, [](const State& one) { return one.taken; });
}

bool OpStates::Complete(std::size_t first, std::size_t end) const {
  const State* const states = states_.data();
  return std::all_of(states + first, states + end,
                     [](const State& one) { return one.taken || one.sent_dense; });
}

template <typename Item>
std::vector<Item> OpStates::Joined(std::vector<Item> State::* items, std::size_t first,
                                   std::size_t end) const {
  std::vector<Item> joined;
  for (std::size_t i = first; i < end; ++i) {
    const std::vector<Item>& own = states_[i].*items;
    joined.insert(joined.end(), own.begin(), own.end());
  }
  return joined;
}

std::vector<GradView> OpStates::GradientsOf(std::size_t first, std::size_t end) const {
  return Joined(&State::gradients, first, end);
}

std::vector<float> OpStates::DecaysOf(std::size_t first, std::size_t end) const {
  return Joined(&State::decays, first, end);
}

/// Scatters a sum whose only entry is NaN.
void OpStates::Mark(const Origin& origin) const {
  SparseBlock sum;
  sum.Reset(1);
  sum.indices()[0] = 0;
  sum.values()[0] = std::numeric_limits<float>::quiet_NaN();
  sum.Finish(1);
  const Kernels& kernels = KernelsFor(origin.device);
  const auto ready = kernels.EndOf(origin.stream);
  kernels.Follow(ready.get());
  std::vector<std::pair<Index, float>> undo;  // stays empty: there is no residual
  for (const State& state : states_) {
    for (const GradView& gradient : state.gradients) {
      if (gradient.numel > 0) kernels.Scatter(sum, 1, 0, gradient, {}, &undo);
    }
  }
  const auto written = kernels.EndOfOwn();
  kernels.MakeStreamFollow(origin.stream, written.get());
}

void OpStates::Release() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    released_[i] = std::exchange(state.done, nullptr);
    state.taken = false;
    state.gradients.clear();
    state.decays.clear();
  }
}

}  // namespace hvd_sparse

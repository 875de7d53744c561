#include "csrc/exchange/op_states.h"

#include <algorithm>
#include <utility>

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

bool OpStates::Complete() const {
  return std::all_of(states_.begin(), states_.end(),
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

void OpStates::Mark(const Origin& origin) const {
  for (const State& state : states_) PutNaN(state.gradients, origin);
}

std::vector<OpStates::Done>& OpStates::Release() {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& state = states_[i];
    released_[i] = std::exchange(state.done, nullptr);
    state.taken = false;
    state.gradients.clear();
    state.decays.clear();
  }
  return released_;
}

}  // namespace hvd_sparse

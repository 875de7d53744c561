/// The ops of a step that were handed over: those that are sent dense, and those that are to be
/// exchanged, until every `done` is called.

#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/step_memory.h"

namespace hvd_sparse {

class OpStates {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  explicit OpStates(std::size_t count) : states_(count), released_(count) {}

  std::size_t size() const { return states_.size(); }

  /// Begins a step, of which no op was handed over.
  void Begin();

  /// Notes that an op is sent dense. Returns true unless it already was in this step.
  bool SendDense(std::size_t op);

  /// Takes an op that is to be exchanged; `decays`: of its gradients' residuals. Returns true
  /// unless it was taken before; then nothing is moved.
  bool Take(std::size_t op, std::vector<GradView>&& gradients, std::vector<float>&& decays,
            Done&& done);

  /// Return true if any op, or all of [first, end), were taken to be exchanged.
  bool Any() const;
  bool HasAll(std::size_t first, std::size_t end) const;

  /// Returns true if all ops of [first, end) were handed over in this step.
  bool Complete(std::size_t first, std::size_t end) const;

  /// Return the gradients of the ops [first, end), and their decays, one op after the other.
  std::vector<GradView> GradientsOf(std::size_t first, std::size_t end) const;
  std::vector<float> DecaysOf(std::size_t first, std::size_t end) const;

  /// Sets the first entry of each gradient to NaN and all others to zero: after the work that the
  /// stream was given so far, and before any that it is given from now on.
  void Mark(const Origin& origin) const;

  /// Releases all ops. The `done` of each is then in released(), empty if it was not taken.
  void Release();
  std::vector<Done>& released() { return released_; }

 private:
  struct State {
    bool sent_dense = false, taken = false;
    std::vector<GradView> gradients;
    std::vector<float> decays;
    Done done;
  };

  template <typename Item>
  std::vector<Item> Joined(std::vector<Item> State::* items, std::size_t first,
                           std::size_t end) const;

  std::vector<State> states_;
  std::vector<Done> released_;
};

}  // namespace hvd_sparse

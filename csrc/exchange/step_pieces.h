/// The pieces of a step that were handed over: those that pass, and those that are to be exchanged,
/// until every `done` is called.

#ifndef HVD_SPARSE_EXCHANGE_STEP_PIECES_H_
#define HVD_SPARSE_EXCHANGE_STEP_PIECES_H_

#include <cstddef>
#include <exception>
#include <functional>
#include <vector>

#include "csrc/base/types.h"
#include "csrc/exchange/origin.h"

namespace hvd_sparse {

class StepPieces {
 public:
  using Done = std::function<void(std::exception_ptr)>;

  explicit StepPieces(std::size_t count) : places_(count), released_(count) {}

  std::size_t size() const { return places_.size(); }

  /// Begins a step, of which no piece was handed over.
  void Begin();

  /// Notes that a piece passes. Returns true unless it already has in this step.
  bool Pass(std::size_t piece);

  /// Takes a piece that is to be exchanged. Returns true unless it was taken before; then nothing
  /// is moved.
  bool Take(std::size_t piece, std::vector<GradView>&& gradients, Done&& done);

  /// Return true if any piece, or all of [first, end), were taken to be exchanged.
  bool Any() const;
  bool HasAll(std::size_t first, std::size_t end) const;

  /// Returns the gradients of the pieces [first, end), one piece after the other.
  std::vector<GradView> GradientsOf(std::size_t first, std::size_t end) const;

  /// Sets the gradients of all pieces to NaN and zeros (PutNaN).
  void Mark(const Origin& origin) const;

  /// Releases all pieces. Returns the `done` of each, empty if it was not taken; valid until the
  /// next call.
  std::vector<Done>& Release();

 private:
  struct Place {
    bool passed = false, taken = false;
    std::vector<GradView> gradients;
    Done done;
  };

  std::vector<Place> places_;
  std::vector<Done> released_;
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_EXCHANGE_STEP_PIECES_H_

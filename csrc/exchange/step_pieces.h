/// The pieces of a step that were handed over: those that pass, and those that are to be exchanged,
/// until everybody is told.

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

  /// A step begins, of which nothing is there.
  void Begin();

  /// A piece passes. Returns whether it had not yet, in this step.
  bool Pass(std::size_t piece);

  /// A piece is to be exchanged. Returns whether it was not there yet; else nothing was moved.
  bool Take(std::size_t piece, std::vector<GradView>&& gradients, Done&& done);

  /// Whether any is to be exchanged, and whether all in [first, end) are there for that.
  bool Any() const;
  bool HasAll(std::size_t first, std::size_t end) const;

  /// The gradients of these, one piece after the other.
  std::vector<GradView> GradientsOf(std::size_t first, std::size_t end) const;

  /// Makes the gradients of all pieces NaN and zeros (PutNaN).
  void Mark(const Origin& origin) const;

  /// None is there any more. Returns whom to tell of those that were, and empty ones; valid until
  /// the next call.
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

#include "csrc/exchange/step_pieces.h"

#include <algorithm>
#include <utility>

namespace hvd_sparse {

void StepPieces::Begin() {
  for (Place& place : places_) place.passed = false;
}

bool StepPieces::Pass(std::size_t piece) { return !std::exchange(places_[piece].passed, true); }

bool StepPieces::Take(std::size_t piece, std::vector<GradView>&& gradients, Done&& done) {
  Place& here = places_[piece];
  if (here.taken) return false;
  here.taken = true;
  here.gradients = std::move(gradients);
  here.done = std::move(done);
  return true;
}

bool StepPieces::Any() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& one) { return one.taken; });
}

bool StepPieces::HasAll(std::size_t first, std::size_t end) const {
  const Place* const places = places_.data();
  return std::all_of(places + first, places + end, [](const Place& one) { return one.taken; });
}

std::vector<GradView> StepPieces::GradientsOf(std::size_t first, std::size_t end) const {
  std::vector<GradView> gradients;
  for (std::size_t i = first; i < end; ++i) {
    const std::vector<GradView>& own = places_[i].gradients;
    gradients.insert(gradients.end(), own.begin(), own.end());
  }
  return gradients;
}

void StepPieces::Mark(const Origin& origin) const {
  for (const Place& place : places_) PutNaN(place.gradients, origin);
}

std::vector<StepPieces::Done>& StepPieces::Release() {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    released_[i] = std::exchange(place.done, nullptr);
    place.taken = false;
    place.gradients.clear();
  }
  return released_;
}

}  // namespace hvd_sparse

/// RandomK: k entries at random, the same ones on every rank.
///
/// Since all ranks send the same indices, no merge drops anything, and the values alone could be
/// allreduced. Every entry has the same chance k / d in every step, so the error is
/// E ||u - s||^2 = (1 - k/d) ||u||^2: a yardstick for the others, which do better.
///
///     cut [0, d) into k strata; draw one position in each; shift all of them by one more draw
///     (modulo d), which makes the chance of every position k / d exactly, also where k does not
///     divide d
///
/// Draws follow from the seed, the segment's place and the number of selections before, which is
/// kept in the state: they are the same on every rank, in every run, and after a checkpoint.
///
/// Options: seed (0), an integer.
///
/// Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
/// https://arxiv.org/abs/1809.07599.

#include <algorithm>
#include <cmath>
#include <vector>

#include "csrc/base/draw.h"
#include "csrc/sparsifiers/builtin.h"

namespace hvd_sparse {
namespace {

/// Largest seed: integers up to here are exact in a double, the type of options.
constexpr double kMaxSeed = 9007199254740992.0;

/// Draws k ascending positions in [0, numel).
void DrawPositions(std::uint64_t stream, std::int64_t k, std::int64_t numel,
                   std::vector<Index>* positions) {
  const std::int64_t shift = Below(numel, Draw(stream, 0));
  positions->resize(static_cast<std::size_t>(k));
  for (std::int64_t stratum = 0; stratum < k; ++stratum) {
    const std::int64_t begin = stratum * numel / k, end = (stratum + 1) * numel / k;
    const std::int64_t drawn =
        begin + Below(end - begin, Draw(stream, static_cast<std::uint64_t>(stratum + 1))) + shift;
    (*positions)[static_cast<std::size_t>(stratum)] =
        static_cast<Index>(drawn < numel ? drawn : drawn - numel);
  }
  // Positions ascend, except where they wrap around.
  std::rotate(positions->begin(), std::min_element(positions->begin(), positions->end()),
              positions->end());
}

class RandomK final : public Sparsifier {
 public:
  explicit RandomK(std::int64_t seed) : seed_(static_cast<std::uint64_t>(seed)) {}

  void Select(std::int64_t k, SelectionState* state, Selection* selection) const override {
    const std::uint64_t place = Draw(seed_, static_cast<std::uint64_t>(selection->offset()));
    const std::uint64_t stream = Draw(place, state->NextDraw());
    thread_local std::vector<Index> positions;
    DrawPositions(stream, k, selection->size(), &positions);
    selection->TakeAt(positions);
  }

 private:
  const std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<const Sparsifier> MakeRandomK(const SparsifierOptions& options) {
  const double seed = OptionOr(options, "seed", 0);
  Require(std::fabs(seed) <= kMaxSeed && seed == std::floor(seed),
          "seed of random_k must be an integer in [-2^53, 2^53], got ", seed);
  return std::make_unique<RandomK>(static_cast<std::int64_t>(seed));
}

}  // namespace hvd_sparse

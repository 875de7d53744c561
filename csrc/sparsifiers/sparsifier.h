/// A sparsifier chooses what a rank sends: about k entries of one segment of a bucket.
///
/// A new one needs a file beside this one, a line in registry.cc and a dataclass in
/// hvd_sparse/compression/sparsifiers.py. The tests of the laws find it through the registry.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/sparsifiers/selection.h"

namespace hvd_sparse {

/// The state of a segment's selection between two steps. It belongs to the caller, who saves it in
/// checkpoints.
struct SelectionState {
  float threshold = 0;   ///< expected to give k entries in the next step; 0: none is known
  float growth = 0;      ///< of its logarithm from step to step
  float tail_index = 0;  ///< how the count of larger entries falls off there; see prediction.h
  float own = 0;         ///< the sparsifier's own state

  /// Counts a draw in `own` and returns how many there were before. Starts again after 2^24, which
  /// is as far as float32 counts.
  std::uint64_t NextDraw() {
    constexpr float kMostDraws = 1 << 24;
    if (!(own >= 0 && own < kMostDraws)) own = 0;
    const auto before = static_cast<std::uint64_t>(own);
    own = own + 1 < kMostDraws ? own + 1 : 0;
    return before;
  }
};

class Sparsifier {
 public:
  virtual ~Sparsifier() = default;

  /// The most entries that Select leaves in the block when it is asked for k of `numel`.
  virtual std::int64_t Capacity(std::int64_t k, std::int64_t numel) const {
    return std::min(k, numel);
  }

  /// The most entries of the segment that are in the block while Select works; >= Capacity.
  virtual std::int64_t Room(std::int64_t k, std::int64_t numel) const { return Capacity(k, numel); }

  /// Takes about k entries of a segment, at most Capacity(k, size). The gradient has been added to
  /// the residual when it returns. Requires 1 <= k <= size.
  virtual void Select(std::int64_t k, SelectionState* state, Selection* selection) const = 0;
};

/// Options of a sparsifier, by name; see its file.
using SparsifierOptions = std::map<std::string, double>;

/// Returns the names of all sparsifiers, in the order of the registry.
std::vector<std::string> SparsifierNames();

/// Returns a sparsifier of that name. Throws InvalidArgument, naming those that exist, or the
/// option that is unknown, missing or out of its limits.
std::unique_ptr<const Sparsifier> MakeSparsifier(const std::string& name,
                                                 const SparsifierOptions& options);

}  // namespace hvd_sparse

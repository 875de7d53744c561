/// The sparsifiers that the registry lists; private to csrc/sparsifiers.

#pragma once

#include <memory>
#include <string>

#include "csrc/base/error.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

std::unique_ptr<const Sparsifier> MakeTopK(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeGaussian(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeSampled(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeSidco(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeHardThreshold(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeRandomK(const SparsifierOptions& options);
std::unique_ptr<const Sparsifier> MakeOneSign(const SparsifierOptions& options);

/// Takes what `top_k` takes, and keeps the threshold that it predicts in the state.
void TakePredictedTopK(std::int64_t k, SelectionState* state, Selection* selection);

/// Returns an option; throws InvalidArgument if it is not given.
inline double Option(const SparsifierOptions& options, const std::string& name) {
  const auto found = options.find(name);
  Require(found != options.end(), "option ", name, " of the sparsifier must be given");
  return found->second;
}

inline double OptionOr(const SparsifierOptions& options, const std::string& name, double value) {
  const auto found = options.find(name);
  return found == options.end() ? value : found->second;
}

}  // namespace hvd_sparse

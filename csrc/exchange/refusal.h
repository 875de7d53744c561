/// The refusal of a step, or of a part of it: equal on all ranks.

#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "csrc/base/error.h"
#include "csrc/exchange/bucket.h"

namespace hvd_sparse {

struct Refusal {
  std::string why;           ///< why no rank applies it; empty if all do
  float largest = INFINITY;  ///< the largest magnitude that the residuals keep of all its buckets

  /// Notes what is wrong with an arrived bucket; the first problem is the one that is told.
  void Note(const Bucket& bucket, int ranks) {
    if (why.empty()) why = bucket.Problem();
    largest = std::min(largest, bucket.LargestKept(ranks));
  }

  /// Throws NonFinite if there is a reason; `what` is a step, or a part of one.
  void ThrowIfAny(const char* what) const {
    if (why.empty()) return;
    const std::string kept = std::isinf(largest) ? "keep all its finite entries"
                                                 : Concat("keep its entries up to ", largest);
    Throw(ErrorKind::kNonFinite, why, ": no rank applies this ", what, ", and the residuals ",
          kept);
  }
};

}  // namespace hvd_sparse

/// Entries of a residual that are so large that their sum over the ranks can leave a number type.
///
/// Such a sum is refused on all ranks, and so would be every later one that such entries join. So
/// each rank drops its own, like entries of a gradient that are not finite.

#pragma once

#include "csrc/base/types.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse {

/// Returns the largest magnitude that all ranks may add up, whatever the values on the wire: no sum
/// leaves float32, and no sum times `scale` leaves the number type of the gradient that it becomes.
/// Coding may double a value (ternary), so that is half of what the numbers allow.
float LargestSummand(DType dtype, float scale, int ranks);

/// Sets the entries to zero whose magnitude exceeds `limit`. The device has no other work on them.
void DropAbove(float limit, Span<float> values, const Kernels& kernels);

}  // namespace hvd_sparse

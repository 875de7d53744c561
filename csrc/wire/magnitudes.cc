#include "csrc/wire/magnitudes.h"

namespace hvd_sparse {

HVD_SPARSE_CLONES float LargestOf(Span<const float> values) {
  return BitsFloat(LargestMagnitude(values.data, values.size));
}

}  // namespace hvd_sparse

/// The sparsifiers that the registry lists; private to csrc/sparsifiers.

#ifndef HVD_SPARSE_SPARSIFIERS_BUILTIN_H_
#define HVD_SPARSE_SPARSIFIERS_BUILTIN_H_

#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

const Sparsifier& TopKSparsifier();      ///< top_k.cc
const Sparsifier& GaussianSparsifier();  ///< gaussian.cc

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_SPARSIFIERS_BUILTIN_H_

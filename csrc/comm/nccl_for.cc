#include "csrc/comm/nccl_for.h"

#include "csrc/base/error.h"
#ifdef HVD_SPARSE_WITH_NCCL
#include "csrc/cuda/nccl_library.h"
#endif

namespace hvd_sparse {

#ifdef HVD_SPARSE_WITH_NCCL

bool BuiltWithNccl() { return true; }

NcclFacts FindNccl(const std::vector<std::string>& also_at) {
  nccl::Library::LookAlsoAt(also_at);
  const nccl::Library& library = nccl::Library::Get();
  return {nccl::VersionName(library.version()), library.path()};
}

#else

bool BuiltWithNccl() { return false; }

NcclFacts FindNccl(const std::vector<std::string>&) {
  Throw(ErrorKind::kUnavailable,
        "this build of hvd_sparse has no NCCL: build it with "
        "HVD_SPARSE_WITH_CUDA=1, and without HVD_SPARSE_WITH_NCCL=0");
}

#endif

}  // namespace hvd_sparse

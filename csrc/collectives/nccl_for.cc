#include "csrc/collectives/nccl_for.h"

#include "csrc/base/error.h"
#ifdef HVD_SPARSE_WITH_NCCL
#include "csrc/cuda/nccl_library.h"
#include "csrc/cuda/nccl_network.h"
#endif

namespace hvd_sparse {

#ifdef HVD_SPARSE_WITH_NCCL

bool BuiltWithNccl() { return true; }

void LookForNcclAt(const std::vector<std::string>& paths) { nccl::Library::LookAlsoAt(paths); }

NcclFacts FindNccl() {
  const nccl::Library& library = nccl::Library::Get();
  return {nccl::VersionName(library.version()), library.path()};
}

DeviceConnection ConnectDevices(Communicator* comm, Device device) {
  return cuda::ConnectOverNccl(comm, device.index);
}

#else

bool BuiltWithNccl() { return false; }

void LookForNcclAt(const std::vector<std::string>&) {}

NcclFacts FindNccl() {
  Throw(ErrorKind::kUnavailable,
        "this build of hvd_sparse has no NCCL: build it with "
        "HVD_SPARSE_WITH_CUDA=1, and without HVD_SPARSE_WITH_NCCL=0");
}

DeviceConnection ConnectDevices(Communicator*, Device) {
  return {nullptr, "this build of hvd_sparse has no NCCL", false};
}

#endif

}  // namespace hvd_sparse

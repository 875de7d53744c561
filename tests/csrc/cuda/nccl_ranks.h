/// Ranks of a test that are connected by NCCL, without an exchange.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_

#include <memory>
#include <string>

#include "csrc/collectives/device_agreement.h"
#include "csrc/cuda/nccl_means.h"
#include "csrc/cuda/nccl_transport.h"

namespace hvd_sparse {

/// What the ranks agree on where there is nothing but NCCL.
inline DeviceAgreement AgreeOnNccl(Communicator* comm, int device) {
  const DeviceMeans& means = cuda::NcclMeans();
  return AgreeOnMeans(comm, {&means}, {StatementOf(means, comm->DeviceMemoryProblem(), device)});
}

/// A transport, or why the ranks have none.
struct NcclConnection {
  std::unique_ptr<cuda::NcclTransport> transport;
  std::string problem;  ///< empty, too, where a rank does not want it
};

inline NcclConnection ConnectNccl(Communicator* comm, int device, const WaitLimits& limits) {
  const DeviceAgreement agreed = AgreeOnNccl(comm, device);
  if (agreed.means == nullptr) return {nullptr, agreed.unmet};
  return {std::make_unique<cuda::NcclTransport>(nccl::Library::Get(), nccl::IdIn(agreed.invitation),
                                                comm, device, limits),
          ""};
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_

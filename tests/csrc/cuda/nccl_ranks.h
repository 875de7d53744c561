/// Ranks for tests that are connected by NCCL, without an exchange.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/collectives/device_agreement.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/nccl_option.h"
#include "csrc/cuda/transport/nccl_transport.h"
#include "csrc/devices/kernels_for.h"
#include "tests/csrc/collective_ranks.h"

namespace hvd_sparse {

/// Returns the agreement of the ranks if NCCL is the only option.
inline DeviceAgreement AgreeOnNccl(Communicator* comm, int device) {
  const GpuTransportOption& option = cuda::NcclOption();
  return AgreeOnGpuTransport(comm, {&option},
                             {StatementOf(option, comm->DeviceMemoryProblem(), device)});
}

/// A transport, or the reason why the ranks have none.
struct NcclConnection {
  std::unique_ptr<cuda::NcclTransport> transport;
  std::string problem;  ///< also empty if a rank does not want NCCL
};

inline NcclConnection ConnectNccl(Communicator* comm, int device) {
  const DeviceAgreement agreed = AgreeOnNccl(comm, device);
  if (agreed.option == nullptr) return {nullptr, agreed.unmet};
  auto transport = std::make_unique<cuda::NcclTransport>(
      nccl::Library::Get(), nccl::IdIn(agreed.invitation), comm, device);
  transport->EndTrial();
  return {std::move(transport), ""};
}

/// Runs `program` on `size` thread ranks, on as many devices as there are. Returns why they cannot
/// use NCCL; empty if they can, or do not want it.
inline std::string OnNcclRanks(
    int size, const std::function<void(cuda::NcclTransport&, Communicator&)>& program) {
  std::vector<std::string> problems(static_cast<std::size_t>(size));
  OnRanks(size, [&](Communicator& comm) {
    const int device = comm.Rank() % static_cast<int>(CudaDeviceNames().size());
    const cuda::OnDevice current(device);
    const NcclConnection made = ConnectNccl(&comm, device);
    problems[static_cast<std::size_t>(comm.Rank())] = made.problem;
    if (made.transport != nullptr) program(*made.transport, comm);
  });
  for (const std::string& problem : problems) EXPECT_EQ(problem, problems[0]);
  return problems[0];
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_NCCL_RANKS_H_

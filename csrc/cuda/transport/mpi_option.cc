#include "csrc/cuda/transport/mpi_option.h"

#include <memory>
#include <string>

#include "csrc/base/error.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/transport/mpi_transport.h"
#include "csrc/cuda/transport/transport_collectives.h"

namespace hvd_sparse::cuda {
namespace {

class OverMpi final : public GpuTransportOption {
 public:
  const char* Name() const override { return "CUDA-aware MPI"; }
  const char* Variable() const override { return "HVD_SPARSE_CUDA_AWARE_MPI"; }

  std::string Describe(const std::string& memory_problem, int) const override {
    if (!memory_problem.empty()) throw Error(ErrorKind::kUnavailable, memory_problem);
    return "";
  }

  std::unique_ptr<GpuCollectives> Connect(Communicator* comm, int device,
                                          const Invitation&) const override {
    return MakeGpuCollectives(
        device, std::make_unique<MpiTransport>(comm, device, WaitLimits::FromEnvironment()));
  }
};

}  // namespace

const GpuTransportOption& MpiOption() {
  static const OverMpi option;
  return option;
}

}  // namespace hvd_sparse::cuda

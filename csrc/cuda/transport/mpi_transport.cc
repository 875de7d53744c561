#include "csrc/cuda/transport/mpi_transport.h"

#include <memory>
#include <string>

#include "csrc/base/error.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/mpi_option.h"
#include "csrc/cuda/transport/transport_collectives.h"

namespace hvd_sparse::cuda {

void MpiTransport::Exchange(int peer, const void* send, void* recv, std::int64_t bytes,
                            cudaStream_t stream) {
  RequireMessage(peer, bytes);
  const OnDevice current(device());
  Require(!IsCaptured(stream),
          "the stream is being captured into a CUDA graph, which cannot hold messages over MPI: "
          "the CPU gives them");
  const std::string what = DescribeMessage(peer);
  Await(stream, what);

  const Outgoing out{peer, send, bytes};
  Incoming in{peer, recv, bytes};
  is_moving_ = true;
  comm().Transfer({&out, send == nullptr ? 0 : 1}, {&in, recv == nullptr ? 0 : 1}, what);
  is_moving_ = false;
  if (recv != nullptr && in.bytes != bytes) {
    Throw(ErrorKind::kExchangeFailed, "in ", what, " rank ", peer, " sent ", in.bytes,
          " bytes, expected are ", bytes);
  }
}

std::string MpiTransport::AwaitedRanks() const { return Concat(Rank(), "'s own device"); }

const GpuTransportOption& MpiOption() {
  static const GpuTransportOption option{
      "CUDA-aware MPI", "HVD_SPARSE_CUDA_AWARE_MPI",
      [](const std::string& memory_problem, int) {
        if (!memory_problem.empty()) throw Error(ErrorKind::kUnavailable, memory_problem);
        return "";
      },
      [](Communicator* comm, int device, const Invitation&) {
        return MakeGpuCollectives(
            device, std::make_unique<MpiTransport>(comm, device, WaitLimits::FromEnvironment()));
      }};
  return option;
}

}  // namespace hvd_sparse::cuda

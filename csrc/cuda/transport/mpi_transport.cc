#include "csrc/cuda/transport/mpi_transport.h"

#include <memory>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/base/stream.h"
#include "csrc/cuda/transport/mpi_option.h"
#include "csrc/cuda/transport/transport_collectives.h"

namespace hvd_sparse::cuda {

void MpiTransport::Move(Span<const DeviceOut> out, Span<const DeviceIn> in, cudaStream_t stream) {
  const std::string what = Described(out, in);
  const OnDevice current(device());
  Require(!IsCaptured(stream),
          "the stream is being captured into a CUDA graph, which cannot hold messages over MPI: "
          "the CPU gives them");
  Await(stream, what);

  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  for (const DeviceOut& one : out) outgoing.push_back({one.peer, one.data, one.bytes});
  for (const DeviceIn& one : in) incoming.push_back({one.peer, one.data, one.bytes});
  is_moving_ = true;
  comm().Transfer(outgoing, incoming, what);
  is_moving_ = false;
  for (const Incoming& message : incoming) {
    if (message.bytes == message.capacity) continue;
    Throw(ErrorKind::kExchangeFailed, "in ", what, " rank ", message.peer, " sent ", message.bytes,
          " bytes, expected are ", message.capacity);
  }
}

std::string MpiTransport::AwaitedRanks() const { return Concat(Rank(), "'s own device"); }

const GpuTransportOption& MpiOption() {
  static const GpuTransportOption option{
      "CUDA-aware MPI", "HVD_SPARSE_CUDA_AWARE_MPI", /*is_default=*/false,
      [](const std::string& memory_problem, int) {
        if (!memory_problem.empty()) throw Error(ErrorKind::kUnavailable, memory_problem);
        return "";
      },
      [](Communicator* comm, int device, const Invitation&) {
        return MakeGpuCollectives(device, std::make_unique<MpiTransport>(comm, device));
      }};
  return option;
}

}  // namespace hvd_sparse::cuda

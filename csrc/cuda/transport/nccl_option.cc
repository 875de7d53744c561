#include "csrc/cuda/transport/nccl_option.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/comm/patience.h"
#include "csrc/cuda/base/check.h"
#include "csrc/cuda/transport/nccl_transport.h"
#include "csrc/cuda/transport/transport_collectives.h"
#include "csrc/cuda/transport/trial.h"

namespace hvd_sparse {

namespace nccl {
namespace {

static_assert(sizeof(UniqueId) == sizeof(Invitation));

/// Returns a device's number, host and UUID; NCCL, too, tells devices apart by the latter two.
std::string NameOf(int device) {
  cudaDeviceProp properties;
  cuda::Check(cudaGetDeviceProperties(&properties, device), "ask for a device's UUID");
  char host[256] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::string name = Concat("GPU ", device, " of ", host, ", UUID ");
  for (const char byte : properties.uuid.bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = static_cast<unsigned char>(byte);
    name += {kDigits[value / 16], kDigits[value % 16]};
  }
  return name;
}

/// Returns the part of a name that tells devices apart: ranks may number one device differently.
std::string IdentityOf(const std::string& name) {
  const auto host = name.find(" of ");
  return host == std::string::npos ? name : name.substr(host);
}

}  // namespace

std::string Description::Text() const { return Concat(version, ' ', may_share, ' ', device); }

Description Description::Of(const std::string& text) {
  Description description;
  std::istringstream in(text);
  in >> description.version >> description.may_share >> std::ws;
  std::getline(in, description.device);
  return description;
}

Description Describe(int device) {
  const char* sharing = std::getenv(kSharing);
  const char* launches = std::getenv("CUDA_LAUNCH_BLOCKING");
  if (launches != nullptr && std::strcmp(launches, "1") == 0) {
    Throw(ErrorKind::kUnavailable,
          "with CUDA_LAUNCH_BLOCKING=1 the CPU waits for each kernel, and NCCL's wait for other "
          "ranks");
  }
  Description description;
  description.device = NameOf(device);
  description.version = Library::Get().version();
  description.may_share = sharing != nullptr && std::strcmp(sharing, "1") == 0;
  return description;
}

std::string WhyNot(const std::vector<Description>& ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].version == ranks[0].version) continue;
    return Concat("rank ", rank, " has NCCL ", VersionName(ranks[rank].version), " and rank 0 ",
                  VersionName(ranks[0].version), ": give all ranks the same");
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (IdentityOf(ranks[rank].device) != IdentityOf(ranks[other].device)) continue;
      const std::string shared =
          Concat("ranks ", other, " and ", rank, " share a device (", ranks[rank].device, ")");
      if (ranks[0].version < kSharingVersion) {
        return Concat(shared, ", for which NCCL ", VersionName(kSharingVersion),
                      " is needed, with ", kSharing, "=1; there is ",
                      VersionName(ranks[0].version));
      }
      for (const std::size_t one : {other, rank}) {
        if (!ranks[one].may_share) {
          return Concat(shared, ": set ", kSharing, "=1, or give each rank a device of its own");
        }
      }
    }
  }
  return "";
}

Invitation Invite() {
  const Library& library = Library::Get();
  UniqueId id;
  const Result result = library.calls().GetUniqueId(&id);
  if (result != kSuccess) {
    Throw(ErrorKind::kUnavailable, library.Problem(result, "ncclGetUniqueId", nullptr));
  }
  Invitation invitation;
  std::copy(std::begin(id.bytes), std::end(id.bytes), invitation.begin());
  return invitation;
}

UniqueId IdIn(const Invitation& invitation) {
  UniqueId id;
  std::copy(invitation.begin(), invitation.end(), id.bytes);
  return id;
}

}  // namespace nccl

namespace cuda {
const GpuTransportOption& NcclOption() {
  static const GpuTransportOption option{
      kNcclName,
      kNcclVariable,
      /*is_default=*/true,
      [](const std::string&, int device) { return nccl::Describe(device).Text(); },
      [](Communicator* comm, int device, const Invitation& invitation) {
        LoadKernels(device);
        const OnDevice current(device);
        Trial trial(comm->Size());
        auto transport = std::make_unique<NcclTransport>(nccl::Library::Get(),
                                                         nccl::IdIn(invitation), comm, device);
        trial.Run(transport.get());
        return MakeGpuCollectives(device, std::move(transport));
      },
      [](const std::vector<std::string>& ranks) {
        std::vector<nccl::Description> descriptions;
        std::transform(ranks.begin(), ranks.end(), std::back_inserter(descriptions),
                       &nccl::Description::Of);
        return nccl::WhyNot(descriptions);
      },
      nccl::Invite};
  return option;
}

}  // namespace cuda

}  // namespace hvd_sparse

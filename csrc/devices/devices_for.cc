#include "csrc/devices/devices_for.h"

#include <memory>

#include "csrc/base/error.h"
#include "csrc/collectives/device_agreement.h"
#ifdef HVD_SPARSE_WITH_CUDA
#include "csrc/cuda/transport/mpi_means.h"
#endif
#ifdef HVD_SPARSE_WITH_NCCL
#include "csrc/cuda/transport/nccl_library.h"
#include "csrc/cuda/transport/nccl_means.h"
#endif

namespace hvd_sparse {

// ---- NCCL ---------------------------------------------------------------------------------------

#ifdef HVD_SPARSE_WITH_NCCL

bool BuiltWithNccl() { return true; }

void LookForNcclAt(const std::vector<std::string>& paths) { nccl::Library::LookAlsoAt(paths); }

NcclFacts FindNccl() {
  const nccl::Library& library = nccl::Library::Get();
  return {nccl::VersionName(library.version()), library.path()};
}

#else

bool BuiltWithNccl() { return false; }

void LookForNcclAt(const std::vector<std::string>&) {}

NcclFacts FindNccl() {
  Throw(ErrorKind::kUnavailable,
        "this build of hvd_sparse has no NCCL: build it with "
        "HVD_SPARSE_WITH_CUDA=1, and without HVD_SPARSE_WITH_NCCL=0");
}

namespace {

/// Stands in for NCCL in builds without it, so that users who insist on it get an error.
class LeftOut final : public NcclByName {
 public:
  std::string Describe(const std::string&, int) const override { return FindNccl().version; }
  std::unique_ptr<DeviceNetwork> Connect(Communicator*, int, const Invitation&) const override {
    return nullptr;  // never called: Describe throws
  }
};

}  // namespace

#endif

// ---- Means of connecting devices in this build --------------------------------------------------

namespace {

MeansTable MeansOfThisBuild() {
#if defined(HVD_SPARSE_WITH_NCCL)
  return {&cuda::NcclMeans(), &cuda::MpiMeans()};
#elif defined(HVD_SPARSE_WITH_CUDA)
  static const LeftOut nccl;
  return {&nccl, &cuda::MpiMeans()};
#else
  return {};
#endif
}

}  // namespace

bool CanConnectDevices() { return !MeansOfThisBuild().empty(); }

std::vector<MeansFacts> AskMeans(const std::string& memory_problem, Device device) {
  std::vector<MeansFacts> facts;
  for (const DeviceMeans* means : MeansOfThisBuild()) {
    const Statement own = StatementOf(*means, memory_problem, device.index);
    const std::string& problem = own.error.empty() ? own.problem : own.error;
    std::string refusal = own.error;
    if (own.wish == Wish::kAlways && !problem.empty()) refusal = InsistedInVain(*means, problem);
    facts.push_back({means->Name(), means->Variable(), problem, refusal});
  }
  return facts;
}

DeviceConnection ConnectDevices(Communicator* comm, Device device) {
  const MeansTable table = MeansOfThisBuild();
  std::vector<Statement> own;
  for (const DeviceMeans* means : table) {
    own.push_back(StatementOf(*means, comm->DeviceMemoryProblem(), device.index));
  }
  const DeviceAgreement agreed = AgreeOnMeans(comm, table, own);
  DeviceConnection connection;
  if (agreed.means != nullptr) {
    connection.network = agreed.means->Connect(comm, device.index, agreed.invitation);
  }
  if (!agreed.unmet.empty()) {
    const std::string way =
        agreed.means == nullptr ? "by way of the CPUs" : Concat("over ", agreed.means->Name());
    connection.news = Concat("gtopk between GPUs goes ", way, ", since ", agreed.unmet);
  }
  return connection;
}

}  // namespace hvd_sparse

#include "csrc/devices/devices_for.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "csrc/base/error.h"
#include "csrc/collectives/device_agreement.h"
#ifdef HVD_SPARSE_WITH_CUDA
#include "csrc/cuda/transport/mpi_option.h"
#endif
#ifdef HVD_SPARSE_WITH_NCCL
#include "csrc/cuda/transport/nccl_library.h"
#include "csrc/cuda/transport/nccl_option.h"
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

#endif

// ---- Ways of connecting devices in this build ---------------------------------------------------

namespace {

GpuTransportOptions OptionsOfThisBuild() {
#if defined(HVD_SPARSE_WITH_NCCL)
  return {&cuda::NcclOption(), &cuda::MpiOption()};
#elif defined(HVD_SPARSE_WITH_CUDA)
  // A user who insists on NCCL gets an error that says how to build with it.
  static const GpuTransportOption left_out{kNcclName, kNcclVariable, /*is_default=*/true,
                                           [](const auto&, int) { return FindNccl().version; }};
  return {&left_out, &cuda::MpiOption()};
#else
  return {};
#endif
}

/// Returns this rank's statement about each option. What a user asks for precedes a default.
std::vector<Statement> OwnStatements(const GpuTransportOptions& table,
                                     const std::string& memory_problem, int device) {
  std::vector<Statement> own;
  for (const GpuTransportOption* option : table) {
    own.push_back(StatementOf(*option, memory_problem, device));
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i].wish < Wish::kIfPossible) continue;
    for (Statement& other : own) {
      if (other.wish != Wish::kByDefault) continue;
      other.wish = Wish::kNever;
      other.problem = Concat(table[i]->variable, " asks for ", table[i]->name);
    }
  }
  return own;
}

/// Makes the network that the ranks have agreed on. If it has failed its trial on a rank, returns
/// null, and `agreed` says why. `own` is this rank's statement about it.
std::unique_ptr<GpuCollectives> Connect(Communicator* comm, Device device, const Statement& own,
                                        DeviceAgreement* agreed) {
  const GpuTransportOption& option = *agreed->option;
  if (!option.is_default) return option.connect(comm, device.index, agreed->invitation);
  std::unique_ptr<GpuCollectives> made;
  std::optional<Error> problem;
  try {
    made = option.connect(comm, device.index, agreed->invitation);
  } catch (...) {
    problem = CurrentError(comm->Rank(), Concat("the trial of ", option.name));
  }
  *agreed = AgreeOnTrial(comm, *agreed, own, problem);
  if (agreed->option == nullptr) return nullptr;
  made->EndTrial();
  return made;
}

}  // namespace

bool CanConnectDevices() { return !OptionsOfThisBuild().empty(); }

std::vector<GpuTransportFacts> AskGpuTransports(const std::string& memory_problem, Device device) {
  std::vector<GpuTransportFacts> facts;
  const GpuTransportOptions table = OptionsOfThisBuild();
  const std::vector<Statement> statements = OwnStatements(table, memory_problem, device.index);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const GpuTransportOption* const option = table[i];
    const Statement& own = statements[i];
    const std::string& problem = own.error.empty() ? own.problem : own.error;
    std::string refusal = own.error;
    if (own.wish == Wish::kAlways && !problem.empty()) {
      refusal = RequiredButUnavailable(*option, problem);
    }
    facts.push_back({option->name, option->variable, problem, refusal});
  }
  return facts;
}

DeviceConnection ConnectDevices(Communicator* comm, Device device) {
  const GpuTransportOptions table = OptionsOfThisBuild();
  const std::vector<Statement> own =
      OwnStatements(table, comm->DeviceMemoryProblem(), device.index);
  DeviceAgreement agreed = AgreeOnGpuTransport(comm, table, own);
  DeviceConnection connection;
  if (agreed.option != nullptr) {
    const auto place = std::find(table.begin(), table.end(), agreed.option) - table.begin();
    const Statement& stated = own[static_cast<std::size_t>(place)];
    connection.collectives = Connect(comm, device, stated, &agreed);
  }
  const std::string way =
      agreed.option == nullptr ? "by way of the CPUs" : Concat("over ", agreed.option->name);
  connection.how = Concat(way, agreed.why.empty() ? "" : ", since ", agreed.why);
  if (!agreed.unmet.empty()) {
    connection.warning = Concat("blocks of GPUs go ", way, ", since ", agreed.unmet);
  }
  return connection;
}

}  // namespace hvd_sparse

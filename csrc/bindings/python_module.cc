/// The Python module hvd_sparse._core.
///
/// No framework header is included here: tensors are passed as addresses (`Tensor.data_ptr()`,
/// `ndarray.ctypes.data`), so one build works with every version of PyTorch, and with NumPy in the
/// tests.

#include "csrc/bindings/python_module.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "csrc/base/buffer.h"
#include "csrc/base/error.h"
#include "csrc/base/process.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/devices/devices_for.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/parallel.h"
#ifdef HVD_SPARSE_WITH_MPI
#include "csrc/comm/mpi_communicator.h"
#endif

namespace py = pybind11;

namespace hvd_sparse {
namespace {

const char* PythonName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorKind::kUnavailable:
      return "UnavailableError";
    case ErrorKind::kPeerLost:
      return "PeerLostError";
    case ErrorKind::kPeerLeft:
      return "PeerLeftError";
    case ErrorKind::kTimeout:
      return "ExchangeTimeoutError";
    case ErrorKind::kExchangeFailed:
      return "ExchangeFailedError";
    case ErrorKind::kNonFinite:
      return "NonFiniteGradientError";
    case ErrorKind::kDisagreement:
      return "RanksDisagreeError";
    case ErrorKind::kOutOfMemory:
      return "OutOfMemoryError";
  }
  return "HvdSparseError";
}

void RaiseInPython(std::exception_ptr raised) {  // NOLINT: pybind11 requires a value
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const Error& error) {
    const py::object type = py::module_::import("hvd_sparse.errors").attr(PythonName(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

void BindEnvironment(py::module_& m) {
  m.def("instruction_set", [] { return std::string(CpuInstructionSet()); });
  m.def(
      "prefer_huge_pages",
      [](const PyBuffer& memory) {
        const GradView view = ViewOf(memory);
        PreferHugePages(view.data, view.numel * SizeOf(view.dtype));
      },
      py::arg("memory"), "Asks for huge pages for memory that has not been written yet.");
#ifdef _OPENMP
  m.attr("with_openmp") = true;
#else
  m.attr("with_openmp") = false;
#endif
  m.attr("with_cuda") = BuiltWithCuda();
  m.def("cuda_devices", &CudaDeviceNames);
  m.def("cuda_device_of", &CudaDeviceOf, py::arg("address"));
  m.attr("with_nccl") = BuiltWithNccl();
  m.def("look_for_nccl_at", &LookForNcclAt, py::arg("paths"));
  m.def("find_nccl", [] {
    NcclFacts facts = FindNccl();
    return std::make_pair(std::move(facts.version), std::move(facts.path));
  });
  py::class_<GpuTransportFacts>(m, "GpuTransportFacts")
      .def_readonly("name", &GpuTransportFacts::name)
      .def_readonly("variable", &GpuTransportFacts::variable)
      .def_readonly("problem", &GpuTransportFacts::problem)
      .def_readonly("refusal", &GpuTransportFacts::refusal);
  m.def(
      "ask_gpu_transports",
      [](const std::string& memory_problem, const std::string& device) {
        return AskGpuTransports(memory_problem, DeviceFrom(device));
      },
      py::arg("memory_problem"), py::kw_only(), py::arg("device"));
  m.def("show_warnings", [](bool show) { warnings_are_shown = show; }, py::arg("show"));
  m.def("exit_within", &ExitWithin, py::arg("seconds"));
  m.def("set_threads", &SetKernelThreads, py::arg("threads"));
  m.def("threads", &KernelThreads);
#ifdef HVD_SPARSE_WITH_MPI
  m.attr("with_mpi") = true;
  m.def("mpi_library_version", &MpiLibraryVersion);
  m.def("ask_mpi", [] {
    MpiGrants grants = AskMpi();
    return std::make_pair(std::move(grants.thread_level), std::move(grants.memory_problem));
  });
  m.def("mpi_world_rank", &MpiWorldRank);
#else
  m.attr("with_mpi") = false;
  m.def("mpi_library_version", [] { return std::string(); });
#endif
}

}  // namespace
}  // namespace hvd_sparse

PYBIND11_MODULE(_core, m) {
  m.doc() = "Sparsification kernels and sparse collectives over MPI, over TCP and between threads.";
  py::register_exception_translator(&hvd_sparse::RaiseInPython);
  hvd_sparse::BindFacts(m);
  hvd_sparse::BindKernels(m);
  hvd_sparse::BindExchange(m);
  hvd_sparse::BindEngine(m);
  hvd_sparse::BindDriver(m);
  hvd_sparse::BindEnvironment(m);
}

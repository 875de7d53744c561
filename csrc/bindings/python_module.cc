/// hvd_sparse._core: the core as Python sees it.
///
/// No framework header is included here: tensors cross as addresses (`Tensor.data_ptr()`,
/// `ndarray.ctypes.data`), so one build serves every version of PyTorch, and NumPy for the tests.
/// hvd_sparse/exchange.py gives it types.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "csrc/kernels/kernels.h"
#include "csrc/sparsifiers/sparsifier.h"
#ifdef HVD_SPARSE_WITH_MPI
#include "csrc/comm/mpi_communicator.h"
#endif

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// (address, numel, dtype): a hvd_sparse.exchange.Buffer.
using PyBuffer = std::tuple<std::uintptr_t, std::int64_t, std::string>;

const std::map<std::string, DType>& DTypes() {
  static const std::map<std::string, DType> names = {{"float32", DType::kFloat32},
                                                     {"float64", DType::kFloat64},
                                                     {"float16", DType::kFloat16},
                                                     {"bfloat16", DType::kBFloat16}};
  return names;
}

GradView ViewOf(const PyBuffer& buffer) {
  const auto& [address, numel, dtype] = buffer;
  const auto found = DTypes().find(dtype);
  Require(found != DTypes().end(),
          "dtype must be one of float32, float64, float16, bfloat16; got '", dtype, "'");
  return {reinterpret_cast<void*>(address), numel, found->second};  // NOLINT: an address it is
}

Span<float> FloatsOf(const PyBuffer& buffer, const char* argument) {
  const GradView view = ViewOf(buffer);
  Require(view.dtype == DType::kFloat32, argument, " must be float32, got ", std::get<2>(buffer));
  return {static_cast<float*>(view.data), view.numel};
}

const char* PythonName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgumentError";
    case ErrorKind::kUnavailable:
      return "UnavailableError";
    case ErrorKind::kPeerLost:
      return "PeerLostError";
    case ErrorKind::kTimeout:
      return "ExchangeTimeoutError";
    case ErrorKind::kExchangeFailed:
      return "ExchangeFailedError";
    case ErrorKind::kNonFinite:
      return "NonFiniteGradientError";
  }
  return "HvdSparseError";
}

void RaiseInPython(std::exception_ptr raised) {  // NOLINT: pybind11 wants it by value
  try {
    if (raised) std::rethrow_exception(raised);
  } catch (const Error& error) {
    const py::object type = py::module_::import("hvd_sparse.errors").attr(PythonName(error.kind()));
    PyErr_SetString(type.ptr(), error.what());
  }
}

/// Waits with the GIL released, in slices, so that Ctrl-C is answered.
void Wait(Exchange& exchange, int bucket) {
  for (;;) {
    {
      const py::gil_scoped_release release;  // peers may be threads of this interpreter
      if (exchange.Wait(bucket, 0.1)) return;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

void Start(Exchange& exchange, int bucket, const std::vector<PyBuffer>& gradients,
           const PyBuffer& residual, const PyBuffer& thresholds, std::vector<std::int64_t> ks,
           std::vector<float> decays, float scale, float output_scale) {
  Launch launch;
  for (const PyBuffer& gradient : gradients) launch.gradients.push_back(ViewOf(gradient));
  launch.residual = FloatsOf(residual, "residual");
  launch.thresholds = FloatsOf(thresholds, "thresholds");
  launch.ks = std::move(ks);
  launch.decays = std::move(decays);
  launch.scale = scale;
  launch.output_scale = output_scale;
  const py::gil_scoped_release release;
  exchange.Start(bucket, std::move(launch));
}

SelectOn SelectOnFrom(const std::string& name) {
  Require(name == "caller" || name == "engine", "select_on must be 'caller' or 'engine', got '",
          name, "'");
  return name == "caller" ? SelectOn::kCaller : SelectOn::kEngine;
}

template <typename T>
py::array_t<T> Copy(const T* data, std::int64_t size) {
  return py::array_t<T>(static_cast<py::ssize_t>(size), data);
}

void BindKernels(py::module_& m) {
  py::class_<SparseBlock>(m, "Block", "A block of entries, as kernels write it; see select_into.")
      .def(py::init<>())
      .def_property_readonly("count", &SparseBlock::count)
      .def("indices", [](const SparseBlock& self) { return Copy(self.indices(), self.count()); })
      .def("values", [](const SparseBlock& self) { return Copy(self.values(), self.count()); });

  m.def(
      "accumulate",
      [](const PyBuffer& gradient, float decay, float scale, const PyBuffer& residual) {
        const GradView view = ViewOf(gradient);
        const Span<float> into = FloatsOf(residual, "residual");
        Require(view.numel == into.size, "residual must have size ", view.numel, ", got ",
                into.size);
        const py::gil_scoped_release release;
        return CpuKernels().Accumulate(view, decay, scale, into);
      },
      py::arg("gradient"), py::arg("decay"), py::arg("scale"), py::arg("residual"),
      "residual = decay * residual + scale * gradient; returns how many entries are not finite.");

  m.def(
      "select_into",
      [](const std::string& name, const PyBuffer& dense, std::int64_t k, const PyBuffer& threshold,
         SparseBlock& block) {
        const Sparsifier& sparsifier = FindSparsifier(name);
        const Span<float> from = FloatsOf(dense, "dense");
        Require(1 <= k && k <= from.size, "k must lie in [1, ", from.size, "], got ", k);
        const Span<float> remembered = FloatsOf(threshold, "threshold");
        const py::gil_scoped_release release;
        block.Reset(sparsifier.Capacity(k, from.size));
        block.Finish(sparsifier.Select(from, k, 0, 0, remembered.data, CpuKernels(), &block));
        return block.count();
      },
      py::arg("sparsifier"), py::arg("dense"), py::arg("k"), py::arg("threshold"), py::arg("block"),
      "Selects about k entries of a float32 array; returns how many.");

  m.def(
      "scatter",
      [](const SparseBlock& block, float scale, const PyBuffer& gradient,
         const PyBuffer& residual) {
        std::vector<std::pair<Index, float>> undo;
        return CpuKernels().Scatter(block, scale, 0, ViewOf(gradient),
                                    FloatsOf(residual, "residual"), &undo);
      },
      py::arg("block"), py::arg("scale"), py::arg("gradient"), py::arg("residual"),
      "gradient = 0, then scale * value where the block has entries.");
}

void BindExchange(py::module_& m) {
  py::class_<BucketStats>(m, "BucketStats")
      .def_readonly("step", &BucketStats::step)
      .def_readonly("numel", &BucketStats::numel)
      .def_readonly("asked", &BucketStats::asked)
      .def_readonly("selected", &BucketStats::selected)
      .def_readonly("reduced", &BucketStats::reduced)
      .def_readonly("bytes_sent", &BucketStats::bytes_sent)
      .def_readonly("bytes_received", &BucketStats::bytes_received)
      .def_readonly("select_seconds", &BucketStats::select_seconds)
      .def_readonly("exchange_seconds", &BucketStats::exchange_seconds);

  py::class_<LoopbackWorld, std::shared_ptr<LoopbackWorld>>(
      m, "LoopbackWorld", "What ranks that are threads of this process share.")
      .def(py::init<int, double>(), py::arg("size"), py::arg("timeout_seconds") = 60.0)
      .def_property_readonly("size", &LoopbackWorld::size);

  py::class_<Exchange>(m, "Exchange")
      .def_static(
          "over_loopback",
          [](std::shared_ptr<LoopbackWorld> world, int rank, const std::string& select_on) {
            return std::make_unique<Exchange>(
                std::make_unique<LoopbackCommunicator>(std::move(world), rank),
                SelectOnFrom(select_on));
          },
          py::arg("world"), py::arg("rank"), py::kw_only(), py::arg("select_on"))
#ifdef HVD_SPARSE_WITH_MPI
      .def_static(
          "over_mpi",
          [](std::vector<int> world_ranks, int tag, std::shared_ptr<Lifeline> lifeline,
             std::int64_t max_message_bytes, const std::string& select_on) {
            const py::gil_scoped_release release;
            MpiOptions options;
            options.world_ranks = std::move(world_ranks);
            options.tag = tag;
            options.limits = WaitLimits::FromEnvironment();
            options.max_message_bytes = max_message_bytes;
            return std::make_unique<Exchange>(MakeMpiCommunicator(options, std::move(lifeline)),
                                              SelectOnFrom(select_on));
          },
          py::arg("world_ranks"), py::kw_only(), py::arg("tag"), py::arg("lifeline"),
          py::arg("max_message_bytes"), py::arg("select_on"))
#endif
      .def(
          "add_bucket",
          [](Exchange& self, std::string name, std::vector<std::int64_t> gradient_numels,
             std::vector<std::int64_t> segment_numels, std::vector<std::int64_t> max_ks,
             std::string sparsifier, std::string collective) {
            return self.AddBucket({std::move(name), std::move(gradient_numels),
                                   std::move(segment_numels), std::move(max_ks),
                                   std::move(sparsifier), std::move(collective)});
          },
          py::arg("name"), py::kw_only(), py::arg("gradient_numels"), py::arg("segment_numels"),
          py::arg("max_ks"), py::arg("sparsifier"), py::arg("collective"))
      .def("start", &Start, py::arg("bucket"), py::arg("gradients"), py::kw_only(),
           py::arg("residual"), py::arg("thresholds"), py::arg("ks"), py::arg("decays"),
           py::arg("scale"), py::arg("output_scale"))
      .def("wait", &Wait, py::arg("bucket"))
      .def("stats", &Exchange::Stats, py::arg("bucket"))
      .def("commit", &Exchange::Commit, py::arg("refuse"), py::call_guard<py::gil_scoped_release>())
      .def("check", &Exchange::Check, py::call_guard<py::gil_scoped_release>())
      .def("fail", &Exchange::Fail, py::arg("reason"), py::call_guard<py::gil_scoped_release>());
}

void BindLifeline(py::module_& m) {
  py::class_<Lifeline, std::shared_ptr<Lifeline>>(m, "Lifeline")
      .def(py::init<int, int, const std::string&>(), py::arg("rank"), py::arg("size"),
           py::arg("name"))
      .def("listen", &Lifeline::Listen)
      .def("connect", &Lifeline::Connect, py::arg("address"), py::arg("seconds"),
           py::call_guard<py::gil_scoped_release>());
}

void BindEnvironment(py::module_& m) {
  m.def("instruction_set", [] { return std::string(CpuInstructionSet()); });
  m.def("sparsifiers", &SparsifierNames);
  m.def("collectives", &CollectiveNames);
#ifdef HVD_SPARSE_WITH_MPI
  m.attr("with_mpi") = true;
  m.def("mpi_library_version", &MpiLibraryVersion);
  m.def("mpi_thread_level", &MpiThreadLevel);
  m.def("mpi_world_rank", &MpiWorldRank);
#else
  m.attr("with_mpi") = false;
  m.def("mpi_library_version", [] { return std::string(); });
  m.def("mpi_thread_level", [] { return std::string(); });
#endif
}

}  // namespace
}  // namespace hvd_sparse

PYBIND11_MODULE(_core, m) {
  m.doc() = "Sparsification kernels and sparse collectives over MPI and between threads.";
  py::register_exception_translator(&hvd_sparse::RaiseInPython);
  hvd_sparse::BindKernels(m);
  hvd_sparse::BindLifeline(m);
  hvd_sparse::BindExchange(m);
  hvd_sparse::BindEnvironment(m);
}

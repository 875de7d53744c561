/// hvd_sparse._core: the core as Python sees it.
///
/// No framework header is included here: tensors cross as addresses (`Tensor.data_ptr()`,
/// `ndarray.ctypes.data`), so one build serves every version of PyTorch, and NumPy for the tests.
/// hvd_sparse/exchange.py gives it types.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/huge_pages.h"
#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/lifeline.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/exchange.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/parallel.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/wire/value_coding.h"
#include "csrc/wire/wire_format.h"
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

Span<SelectionState> StatesOf(const PyBuffer& buffer) {
  constexpr std::int64_t kFields = sizeof(SelectionState) / sizeof(float);
  const Span<float> floats = FloatsOf(buffer, "states");
  Require(floats.size % kFields == 0, "states must hold ", kFields, " numbers per segment, got ",
          floats.size);
  return {reinterpret_cast<SelectionState*>(floats.data), floats.size / kFields};
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
           const PyBuffer& residual, const PyBuffer& states, std::vector<std::int64_t> ks,
           std::vector<float> decays, float scale, float output_scale) {
  Launch launch;
  for (const PyBuffer& gradient : gradients) launch.gradients.push_back(ViewOf(gradient));
  launch.residual = FloatsOf(residual, "residual");
  launch.states = StatesOf(states);
  launch.ks = std::move(ks);
  launch.decays = std::move(decays);
  launch.scale = scale;
  launch.output_scale = output_scale;
  const py::gil_scoped_release release;
  exchange.Start(bucket, std::move(launch));
}

DType WireDTypeFrom(const std::string& name) {
  const auto found = DTypes().find(name);
  Require(found != DTypes().end() && found->second != DType::kFloat64,
          "wire_dtype must be one of float32, float16, bfloat16; got '", name, "'");
  return found->second;
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

/// One segment's selection in an exchange of its own, for tests and benchmarks.
class Selector {
 public:
  Selector(const std::string& name, const SparsifierOptions& options, std::int64_t numel,
           std::int64_t k)
      : sparsifier_(MakeSparsifier(name, options)), numel_(numel), k_(k) {
    Require(1 <= k && k <= numel, "k must lie in [1, ", numel, "], got ", k);
  }

  std::int64_t Select(const PyBuffer& gradient, float decay, float scale, const PyBuffer& residual,
                      const PyBuffer& state) {
    const Feedback feedback{ViewOf(gradient), decay, scale, FloatsOf(residual, "residual")};
    const Span<SelectionState> states = StatesOf(state);
    Require(feedback.grad.numel == numel_ && feedback.residual.size == numel_,
            "gradient and residual must have size ", numel_, ", got ", feedback.grad.numel, " and ",
            feedback.residual.size);
    Require(states.size == 1, "state must be that of one segment, got ", states.size);
    const py::gil_scoped_release release;
    const std::int64_t room = sparsifier_->Room(k_, numel_);
    block_.Reset(room);
    Selection selection({&feedback, 1}, feedback.residual, 0, 0, room, CpuKernels(), &block_);
    sparsifier_->Select(k_, states.data, &selection);
    block_.Finish(selection.taken());
    return selection.not_finite();
  }

  const SparseBlock& block() const { return block_; }

 private:
  const std::unique_ptr<const Sparsifier> sparsifier_;
  const std::int64_t numel_, k_;
  SparseBlock block_;
};

/// A message and the memory for it, for tests and benchmarks.
class Coder {
 public:
  Coder(bool packed, const std::string& wire_dtype, std::int64_t numel)
      : format_{packed, WireDTypeFrom(wire_dtype)}, numel_(numel) {}

  void Narrow(SparseBlock& block) const {
    RoundValues(format_.values, block.values(), block.count(), nullptr);
  }

  std::int64_t Encode(const SparseBlock& block) {
    message_.Reserve(block.message_bytes());
    bytes_ = EncodeBlock(block, format_, Cargo::kSums, message_.data());
    return bytes_;
  }

  void Decode(SparseBlock& block) const {
    Require(bytes_ > 0, "nothing was encoded yet");
    block.Reset(SparseBlock::ReadHeader(message_.data(), bytes_).count);
    DecodeBlock(message_.data(), bytes_, numel_, &block);
  }

 private:
  const WireFormat format_;
  const std::int64_t numel_;
  Buffer message_;
  std::int64_t bytes_ = 0;
};

using Indices = py::array_t<Index, py::array::c_style | py::array::forcecast>;
using Values = py::array_t<float, py::array::c_style | py::array::forcecast>;

std::unique_ptr<SparseBlock> MakeBlock(const Indices& indices, const Values& values) {
  Require(indices.size() == values.size(), "values must have size ", indices.size(), ", got ",
          values.size());
  auto block = std::make_unique<SparseBlock>();
  block->Reset(indices.size());
  std::copy_n(indices.data(), indices.size(), block->indices());
  std::copy_n(values.data(), values.size(), block->values());
  block->Finish(indices.size());
  return block;
}

void BindKernels(py::module_& m) {
  py::class_<SparseBlock>(m, "Block", "Entries of a bucket: ascending indices and their values.")
      .def(py::init(&MakeBlock), py::arg("indices"), py::arg("values"))
      .def_property_readonly("count", &SparseBlock::count)
      .def("indices", [](const SparseBlock& self) { return Copy(self.indices(), self.count()); })
      .def("values", [](const SparseBlock& self) { return Copy(self.values(), self.count()); });

  py::class_<Selector>(m, "Selector", "One segment's selection; what it takes is in its block.")
      .def(py::init<const std::string&, const SparsifierOptions&, std::int64_t, std::int64_t>(),
           py::arg("sparsifier"), py::arg("options"), py::kw_only(), py::arg("numel"), py::arg("k"))
      .def("select", &Selector::Select, py::arg("gradient"), py::kw_only(), py::arg("decay"),
           py::arg("scale"), py::arg("residual"), py::arg("state"),
           "residual = decay * residual + scale * gradient, less what is taken; returns how many "
           "entries of the gradient are not finite.")
      .def_property_readonly("block", &Selector::block,
                             py::return_value_policy::reference_internal);

  py::class_<Coder>(m, "Coder", "A message of a wire format, and the memory for it.")
      .def(py::init<bool, const std::string&, std::int64_t>(), py::kw_only(), py::arg("packed"),
           py::arg("wire_dtype"), py::arg("numel"))
      .def("narrow", &Coder::Narrow, py::arg("block"), "Rounds the values to those that travel.")
      .def("encode", &Coder::Encode, py::arg("block"), "Makes the message; returns its bytes.")
      .def("decode", &Coder::Decode, py::arg("block"), "Reads the message into a block.");

  m.def(
      "scatter",
      [](const SparseBlock& block, float scale, const PyBuffer& gradient,
         const PyBuffer& residual) {
        std::vector<std::pair<Index, float>> undo;
        const GradView into = ViewOf(gradient);
        const Span<float> rest = FloatsOf(residual, "residual");
        const py::gil_scoped_release release;
        return CpuKernels().Scatter(block, scale, 0, into, rest, &undo);
      },
      py::arg("block"), py::arg("scale"), py::arg("gradient"), py::arg("residual"),
      "gradient = 0, then scale * value where the block has entries.");

  m.def(
      "merge",
      [](const SparseBlock& own, const SparseBlock& theirs, SparseBlock& out) {
        CpuKernels().Merge(own, theirs, &out);
      },
      py::arg("own"), py::arg("theirs"), py::arg("out"), "The union of two blocks.");

  m.def(
      "keep_top_k",
      [](SparseBlock& block, std::int64_t k) {
        block.Finish(CpuKernels().KeepTopK(k, 0, block.count(), &block));
      },
      py::arg("block"), py::arg("k"), "Drops all but the k largest magnitudes.");

  m.def(
      "settle",
      [](const SparseBlock& selected, const SparseBlock& reduced, const PyBuffer& residual) {
        const Span<float> into = FloatsOf(residual, "residual");
        for (std::int64_t i = 0; i < selected.count(); ++i) {
          const Index position = Position(selected.indices()[i]);
          Require(position < into.size, "an index of selected must lie in [0, ", into.size,
                  "), got ", position);
        }
        CpuKernels().Settle(selected, reduced, into);
      },
      py::arg("selected"), py::arg("reduced"), py::arg("residual"),
      "Puts back what was selected and is not marked as delivered in the reduced block.");
}

void BindExchange(py::module_& m) {
  py::class_<RoundTimes>(m, "RoundTimes")
      .def_readonly("name", &RoundTimes::name)
      .def_readonly("begin", &RoundTimes::begin)
      .def_readonly("end", &RoundTimes::end)
      .def_readonly("bytes_sent", &RoundTimes::bytes_sent)
      .def_readonly("bytes_received", &RoundTimes::bytes_received);

  py::class_<BucketStats>(m, "BucketStats")
      .def_readonly("step", &BucketStats::step)
      .def_readonly("numel", &BucketStats::numel)
      .def_readonly("asked", &BucketStats::asked)
      .def_readonly("selected", &BucketStats::selected)
      .def_readonly("reduced", &BucketStats::reduced)
      .def_readonly("bytes_sent", &BucketStats::bytes_sent)
      .def_readonly("bytes_received", &BucketStats::bytes_received)
      .def_readonly("select_seconds", &BucketStats::select_seconds)
      .def_readonly("exchange_seconds", &BucketStats::exchange_seconds)
      .def_readonly("select_begin", &BucketStats::select_begin)
      .def_readonly("select_end", &BucketStats::select_end)
      .def_readonly("exchange_begin", &BucketStats::exchange_begin)
      .def_readonly("settle_begin", &BucketStats::settle_begin)
      .def_readonly("exchange_end", &BucketStats::exchange_end)
      .def_readonly("rounds", &BucketStats::rounds);

  py::class_<LoopbackWorld, std::shared_ptr<LoopbackWorld>>(
      m, "LoopbackWorld", "What ranks that are threads of this process share.")
      .def(py::init<int, double>(), py::arg("size"), py::arg("timeout_seconds") = 60.0)
      .def_property_readonly("size", &LoopbackWorld::size);

  py::class_<Exchange>(m, "Exchange")
      .def_static(
          "over_loopback",
          [](std::shared_ptr<LoopbackWorld> world, int rank, const std::string& select_on,
             int local_size) {
            Nodes nodes = Nodes::Of(world->size(), local_size);
            return std::make_unique<Exchange>(
                std::make_unique<LoopbackCommunicator>(std::move(world), rank),
                SelectOnFrom(select_on), std::move(nodes));
          },
          py::arg("world"), py::arg("rank"), py::kw_only(), py::arg("select_on"),
          py::arg("local_size"))
#ifdef HVD_SPARSE_WITH_MPI
      .def_static(
          "over_mpi",
          [](std::vector<int> world_ranks, int tag, std::shared_ptr<Lifeline> lifeline,
             std::int64_t max_message_bytes, const std::string& select_on,
             std::vector<int> machines, std::vector<int> nodes) {
            const py::gil_scoped_release release;
            MpiOptions options;
            options.world_ranks = std::move(world_ranks);
            options.machines = std::move(machines);
            options.tag = tag;
            options.limits = WaitLimits::FromEnvironment();
            options.max_message_bytes = max_message_bytes;
            return std::make_unique<Exchange>(MakeMpiCommunicator(options, std::move(lifeline)),
                                              SelectOnFrom(select_on), Nodes(std::move(nodes)));
          },
          py::arg("world_ranks"), py::kw_only(), py::arg("tag"), py::arg("lifeline"),
          py::arg("max_message_bytes"), py::arg("select_on"), py::arg("machines"), py::arg("nodes"))
#endif
      .def(
          "add_bucket",
          [](Exchange& self, std::string name, std::vector<std::int64_t> gradient_numels,
             std::vector<std::int64_t> segment_numels, std::vector<std::int64_t> max_ks,
             std::string sparsifier, SparsifierOptions sparsifier_options, std::string collective,
             double slack, bool packed, const std::string& wire_dtype) {
            return self.AddBucket({std::move(name),
                                   std::move(gradient_numels),
                                   std::move(segment_numels),
                                   std::move(max_ks),
                                   std::move(sparsifier),
                                   std::move(sparsifier_options),
                                   std::move(collective),
                                   {slack},
                                   {packed, WireDTypeFrom(wire_dtype)}});
          },
          py::arg("name"), py::kw_only(), py::arg("gradient_numels"), py::arg("segment_numels"),
          py::arg("max_ks"), py::arg("sparsifier"), py::arg("sparsifier_options"),
          py::arg("collective"), py::arg("slack"), py::arg("packed"), py::arg("wire_dtype"))
      .def_property_readonly("local_size",
                             [](const Exchange& self) { return self.nodes().LocalSize(); })
      .def("clear_buckets", &Exchange::ClearBuckets)
      .def("start", &Start, py::arg("bucket"), py::arg("gradients"), py::kw_only(),
           py::arg("residual"), py::arg("states"), py::arg("ks"), py::arg("decays"),
           py::arg("scale"), py::arg("output_scale"))
      .def("wait", &Wait, py::arg("bucket"))
      .def("stats", &Exchange::Stats, py::arg("bucket"))
      .def("commit", &Exchange::Commit, py::arg("refuse"), py::call_guard<py::gil_scoped_release>())
      .def("swap", &Exchange::Swap, py::arg("peer"), py::arg("bytes"), py::arg("repetitions"),
           py::call_guard<py::gil_scoped_release>())
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
  m.def("set_threads", &SetKernelThreads, py::arg("threads"));
  m.def("threads", &KernelThreads);
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

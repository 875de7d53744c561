/// The Python module hvd_sparse._core_testing: kernels and parts of a step that only tests and
/// benchmarks call one by one.
///
/// Builds for development compile it into the file of hvd_sparse._core, so that the two modules
/// share devices, threads and types; setup.py links that file under this module's name, too. No
/// wheel contains it.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/devices/kernels_for.h"
#include "csrc/kernels/kernels.h"
#include "csrc/kernels/merge_work.h"
#include "csrc/sparsifiers/sparsifier.h"
#include "csrc/wire/value_coding.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// Selects from one segment, as a step does. On a GPU, the caller must have waited until the memory
/// is written.
class Selector {
 public:
  Selector(const std::string& name, const SparsifierOptions& options, std::int64_t numel,
           std::int64_t k, const std::string& device)
      : sparsifier_(MakeSparsifier(name, options)),
        kernels_(KernelsFor(DeviceFrom(device))),
        numel_(numel),
        k_(k) {
    Require(1 <= k && k <= numel, "k must lie in [1, ", numel, "], got ", k);
  }

  std::int64_t Select(const PyBuffer& gradient, float decay, float scale, const PyBuffer& residual,
                      const PyBuffer& state, const std::optional<PyBuffer>& velocity,
                      float momentum) {
    Feedback feedback{ViewOf(gradient), decay, scale, FloatsOf(residual, "residual")};
    if (velocity) {
      feedback.velocity = FloatsOf(*velocity, "velocity");
      feedback.momentum = momentum;
      Require(kernels_.UpdatesVelocities(), "a velocity takes the kernels of the CPU");
      Require(feedback.velocity.size == numel_, "velocity must have size ", numel_, ", got ",
              feedback.velocity.size);
    }
    const Span<SelectionState> states = StatesOf(state);
    Require(feedback.grad.numel == numel_ && feedback.residual.size == numel_,
            "gradient and residual must have size ", numel_, ", got ", feedback.grad.numel, " and ",
            feedback.residual.size);
    Require(states.size == 1, "state must be that of one segment, got ", states.size);
    const py::gil_scoped_release release;
    const std::int64_t room = sparsifier_->Room(k_, numel_);
    block_.Reset(room);
    Selection selection({&feedback, 1}, feedback.residual, 0, 0, room, kernels_, &block_);
    sparsifier_->Select(k_, states.data, &selection);
    selection.Finish();
    block_.Finish(selection.taken());
    return selection.not_finite();
  }

  const SparseBlock& block() const { return block_; }

 private:
  const std::unique_ptr<const Sparsifier> sparsifier_;
  const Kernels& kernels_;
  const std::int64_t numel_, k_;
  SparseBlock block_;
};

/// Codes an array chunk by chunk, as messages of dense values do.
class DenseCoder {
 public:
  DenseCoder(const std::string& values, float scale, std::int64_t numel, std::int64_t chunk)
      : format_{DenseValuesFrom(values), scale}, numel_(numel), chunk_(chunk) {
    Require(chunk >= 1, "chunk must be at least 1, got ", chunk);
    const std::int64_t chunks = (numel + chunk - 1) / chunk;
    code_.resize(static_cast<std::size_t>(chunks * MostCodeBytes(format_.values, chunk)));
  }

  std::int64_t Take(const PyBuffer& gradient, const PyBuffer& residual) {
    const Feedback all{ViewOf(gradient), 1, 1, FloatsOf(residual, "residual")};
    RequireSize(all.grad.numel);
    RequireSize(all.residual.size);
    const py::gil_scoped_release release;
    bytes_ = 0;
    std::int64_t refused = 0;
    ForChunks([&](std::int64_t begin, std::int64_t size) {
      const Feedback part{all.grad.Sub(begin, size), 1, 1, all.residual.Sub(begin, size)};
      bytes_ += AccumulateAndTakeCoded(format_, part, code_.data() + bytes_, &refused);
    });
    return bytes_;
  }

  void Decode(const PyBuffer& out) const { Read(out, DecodeInto); }
  void Add(const PyBuffer& sum) const { Read(sum, AddDecoded); }

 private:
  void RequireSize(std::int64_t size) const {
    Require(size == numel_, "arrays must have size ", numel_, ", got ", size);
  }

  template <typename Work>
  void ForChunks(Work work) const {
    for (std::int64_t begin = 0; begin < numel_; begin += chunk_) {
      work(begin, std::min(chunk_, numel_ - begin));
    }
  }

  void Read(const PyBuffer& buffer, decltype(&DecodeInto) read) const {
    const Span<float> into = FloatsOf(buffer, "an array of decoded values");
    RequireSize(into.size);
    const py::gil_scoped_release release;
    std::int64_t at = 0;
    ForChunks([&](std::int64_t begin, std::int64_t size) {
      const Span<const std::uint8_t> left(code_.data() + at, bytes_ - at);
      at += read(format_.values, left, into.Sub(begin, size));
    });
  }

  const DenseFormat format_;
  const std::int64_t numel_, chunk_;
  std::vector<std::uint8_t> code_;
  std::int64_t bytes_ = 0;
};

void BindDenseCoder(py::module_& m) {
  py::class_<DenseCoder>(m, "DenseCoder", "Codes an array chunk by chunk, on the CPU.")
      .def(py::init<const std::string&, float, std::int64_t, std::int64_t>(), py::arg("values"),
           py::kw_only(), py::arg("scale") = 1.0f, py::arg("numel"), py::arg("chunk"))
      .def("take", &DenseCoder::Take, py::arg("gradient"), py::arg("residual"),
           "residual += gradient, which is coded; the residual keeps the errors. Returns the bytes "
           "of the code.")
      .def("decode", &DenseCoder::Decode, py::arg("out"), "out = the decoded values")
      .def("add", &DenseCoder::Add, py::arg("total"), "total += the decoded values");
}

void BindCalls(py::module_& m) {
  py::class_<Selector>(m, "Selector", "One segment's selection; what it takes is in its block.")
      .def(py::init<const std::string&, const SparsifierOptions&, std::int64_t, std::int64_t,
                    const std::string&>(),
           py::arg("sparsifier"), py::arg("options"), py::kw_only(), py::arg("numel"), py::arg("k"),
           py::arg("device") = "cpu")
      .def("select", &Selector::Select, py::arg("gradient"), py::kw_only(), py::arg("decay"),
           py::arg("scale"), py::arg("residual"), py::arg("state"),
           py::arg("velocity") = py::none(), py::arg("momentum") = 0.0F,
           "residual = decay * residual + scale * gradient, less what is taken; returns how many "
           "entries of the gradient are not finite. With a velocity, that is momentum * velocity + "
           "scale * gradient, and is added to the residual.")
      .def_property_readonly("block", &Selector::block,
                             py::return_value_policy::reference_internal);

  m.def(
      "scatter",
      [](const SparseBlock& block, float scale, const PyBuffer& gradient, const PyBuffer& residual,
         const std::string& device) {
        const Kernels& kernels = KernelsFor(DeviceFrom(device));
        std::vector<std::pair<Index, float>> undo;
        const GradView into = ViewOf(gradient);
        const Span<float> rest = FloatsOf(residual, "residual");
        const py::gil_scoped_release release;
        return kernels.Scatter(block, scale, 0, into, rest, &undo);
      },
      py::arg("block"), py::arg("scale"), py::arg("gradient"), py::arg("residual"), py::kw_only(),
      py::arg("device") = "cpu", "gradient = 0, then scale * value where the block has entries.");

  m.def(
      "settle",
      [](const SparseBlock& selected, const SparseBlock& reduced, const PyBuffer& residual,
         const std::string& device) {
        const Span<float> into = FloatsOf(residual, "residual");
        for (std::int64_t i = 0; i < selected.count(); ++i) {
          const Index position = Position(selected.indices()[i]);
          Require(position < into.size, "an index of selected must lie in [0, ", into.size,
                  "), got ", position);
        }
        KernelsFor(DeviceFrom(device)).Settle(selected, reduced, into);
      },
      py::arg("selected"), py::arg("reduced"), py::arg("residual"), py::kw_only(),
      py::arg("device") = "cpu",
      "Puts back what was selected and is not marked as delivered in the reduced block.");
}

void BindMergeWork(py::module_& m) {
  py::class_<MergeWork>(m, "MergeWork", "A merge on a device, to be enqueued on a stream.")
      .def(
          "enqueue", [](MergeWork& self, StreamHandle stream) { self.Enqueue(stream); },
          py::arg("stream"), py::call_guard<py::gil_scoped_release>(),
          "Gives the work to a stream (a number; 0 is the default one), and returns at once.")
      .def(
          "wait",
          [](MergeWork& self) {
            auto block = std::make_unique<SparseBlock>();
            self.WaitForResult(block.get());
            return block;
          },
          py::call_guard<py::gil_scoped_release>(),
          "Waits for the device; returns the block that was made last.");

  m.def(
      "merge_work",
      [](const SparseBlock& own, const SparseBlock& theirs, std::int64_t k,
         const std::string& device) { return MergeWorkOn(DeviceFrom(device), own, theirs, k); },
      py::arg("own"), py::arg("theirs"), py::kw_only(), py::arg("k"), py::arg("device"),
      "The k largest of the union of two blocks, all on the device.");
}

}  // namespace
}  // namespace hvd_sparse

PYBIND11_MODULE(_core_testing, m) {
  m.doc() = "Kernels and parts of a step, one by one, for tests and benchmarks.";
  py::module_::import("hvd_sparse._core");  // binds the types of blocks and errors
  hvd_sparse::BindCalls(m);
  hvd_sparse::BindDenseCoder(m);
  hvd_sparse::BindMergeWork(m);
}

/// Bindings of step engines; hvd_sparse/pytorch/steps.py and exchange/array_steps.py call them.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/step_engine.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// A StepEngine whose memory is passed as addresses.
class BoundEngine : public BoundSteps {
 public:
  using Ops = std::vector<std::pair<std::int64_t, std::int64_t>>;

  BoundEngine(Exchange& exchange, const Ops& ops, std::vector<DrivenBucket> buckets,
              StepRules rules)
      : own_(new StepEngine(&exchange, OpGradients::Of(ops), std::move(buckets), rules)) {
    Open(own_.get());
  }

  /// Ends the use of the exchange.
  void Close() {
    BoundSteps::Close();
    own_.reset();
  }

  bool Begin(const PyBuffer& residual, const PyBuffer& states,
             const std::optional<PyBuffer>& velocity, const std::optional<PyBuffer>& room,
             float loss_scale, float momentum, float dampening, StreamHandle stream,
             const std::optional<std::set<int>>& ops) const {
    StepMemory memory;
    memory.residual = FloatsOf(residual, "residual");
    memory.states = StatesOf(states);
    if (velocity) memory.velocity = FloatsOf(*velocity, "velocity");
    if (room) memory.room = FloatsOf(*room, "room");
    memory.loss_scale = loss_scale;
    memory.momentum = momentum;
    memory.dampening = dampening;
    memory.origin = OriginOf(stream);
    return engine().Begin(memory, ops);
  }

  bool Launch(int op, const std::vector<PyBuffer>& gradients, const std::vector<float>& decays,
              StreamHandle stream) const {
    std::vector<GradView> views;
    for (const PyBuffer& gradient : gradients) views.push_back(ViewOf(gradient));
    const py::gil_scoped_release release;
    return engine().Launch(op, views, decays, OriginOf(stream));
  }

  std::vector<BucketStats> Wait() const {
    WaitInSlices([this](double seconds) { return engine().Wait(seconds); });
    return engine().Stats();
  }

  void CommitPart(const std::vector<int>& ops) const {
    WaitInSlices([&](double seconds) { return engine().WaitFor(ops, seconds); });
    const py::gil_scoped_release release;
    engine().CommitPart(ops);
  }

  py::list Samples() const {
    py::list samples;
    for (const StepSample& one : engine().Samples()) {
      samples.append(py::make_tuple(one.bucket, ArrayOf(one.accumulated), ArrayOf(one.left),
                                    ArrayOf(one.applied)));
    }
    return samples;
  }

 private:
  Origin OriginOf(StreamHandle stream) const {
    const Device device = engine().rules().device;
    return device.IsCpu() ? Origin{} : Origin{device, stream};
  }

  OwnProcessPointer<StepEngine> own_;
};

}  // namespace

void BindEngine(py::module_& m) {
  using Phases = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;
  py::class_<DrivenBucket>(m, "DrivenBucket")
      .def(py::init([](int bucket, float scale, float output_scale, Phases ks, int ops) {
             return DrivenBucket{bucket, scale, output_scale, std::move(ks), ops};
           }),
           py::arg("bucket"), py::kw_only(), py::arg("scale"), py::arg("output_scale"),
           py::arg("ks"), py::arg("ops"))
      .def_readonly("ops", &DrivenBucket::ops)
      .def_readonly_static("DENSE", &DrivenBucket::kDense);
  py::class_<StepRules>(m, "StepRules")
      .def(py::init([](bool marks_non_finite, bool has_velocity, bool masks_velocity,
                       std::int64_t measure_every, bool others, const std::string& device) {
             const NonFinite non_finite = marks_non_finite ? NonFinite::kMark : NonFinite::kRefuse;
             return StepRules{non_finite,    has_velocity, masks_velocity,
                              measure_every, others,       DeviceFrom(device)};
           }),
           py::kw_only(), py::arg("marks_non_finite") = false, py::arg("has_velocity") = false,
           py::arg("masks_velocity") = true, py::arg("measure_every") = 0,
           py::arg("others") = false, py::arg("device") = "cpu");
  py::class_<BoundSteps>(m, "Steps")
      .def_property_readonly("steps", &BoundSteps::steps)
      .def_property_readonly("pending", &BoundSteps::pending)
      .def_property_readonly("residual_norms",
                             [](const BoundSteps& self) { return self.engine().ResidualNorms(); })
      .def_property_readonly("stats", [](const BoundSteps& self) { return self.engine().Stats(); })
      .def(
          "replace",
          [](const BoundSteps& self, std::vector<DrivenBucket> buckets) {
            self.engine().Replace(std::move(buckets));
          },
          py::arg("buckets"))
      .def(
          "reorder",
          [](const BoundSteps& self, const std::vector<int>& order) {
            self.engine().Reorder(order);
          },
          py::arg("order"))
      .def(
          "continue_after",
          [](const BoundSteps& self, std::int64_t steps, bool pending) {
            self.engine().ContinueAfter(steps, pending);
          },
          py::arg("steps"), py::arg("pending"))
      .def(
          "time_steps",
          [](const BoundSteps& self, bool wanted) { self.engine().TimeSteps(wanted); },
          py::arg("wanted"));
  using py::gil_scoped_release;
  py::class_<BoundEngine, BoundSteps>(m, "StepEngine")
      .def(py::init<Exchange&, const BoundEngine::Ops&, std::vector<DrivenBucket>, StepRules>(),
           py::arg("exchange"), py::arg("ops"), py::arg("buckets"), py::arg("rules"))
      .def("close", &BoundEngine::Close)  // before the exchange is
      .def_property_readonly("room", [](const BoundEngine& self) { return self.engine().Room(); })
      .def("begin", &BoundEngine::Begin, py::kw_only(), py::arg("residual"), py::arg("states"),
           py::arg("velocity") = py::none(), py::arg("room") = py::none(),
           py::arg("loss_scale") = 1.0f, py::arg("momentum") = 0.0f, py::arg("dampening") = 0.0f,
           py::arg("stream") = 0, py::arg("ops") = py::none())
      .def("launch", &BoundEngine::Launch, py::arg("op"), py::arg("gradients"), py::arg("decays"),
           py::arg("stream") = 0)
      .def(
          "summed",
          [](const BoundEngine& self, const std::string& gradient, bool finite) {
            self.engine().SummedAs(finite, gradient);
          },
          py::arg("gradient"), py::kw_only(), py::arg("finite"))
      .def("wait", &BoundEngine::Wait)
      .def_property_readonly("problem",
                             [](const BoundEngine& self) { return self.engine().Problem(); })
      .def(
          "commit",
          [](const BoundEngine& self, const std::string& refuse) { self.engine().Commit(refuse); },
          py::arg("refuse") = "", py::call_guard<gil_scoped_release>())
      .def("commit_part", &BoundEngine::CommitPart, py::arg("ops"))
      .def_property_readonly("came", [](const BoundEngine& self) { return self.engine().Came(); })
      .def("samples", &BoundEngine::Samples)
      .def(
          "abandon", [](const BoundEngine& self) { self.engine().Abandon(); },
          py::call_guard<gil_scoped_release>());
}

}  // namespace hvd_sparse

/// Bindings of step engines; hvd_sparse/exchange/steps.py wraps them with types.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/own_process.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/step_engine.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// A StepEngine whose memory is passed as addresses.
class BoundEngine {
 public:
  using Ops = std::vector<std::pair<std::int64_t, std::int64_t>>;

  BoundEngine(Exchange& exchange, const Ops& ops, std::vector<DrivenBucket> buckets,
              StepRules rules)
      : engine_(new StepEngine(&exchange, OpGradients::Of(ops), std::move(buckets), rules)) {}

  StepEngine* operator->() const {
    if (engine_ == nullptr) Throw(ErrorKind::kExchangeFailed, "this exchange is closed");
    return engine_.get();
  }

  /// Ends the use of the exchange; what is known of the steps stays.
  void Close() {
    if (engine_ == nullptr) return;
    pending_ = engine_->AnyPending();
    engine_.reset();
  }

  bool pending() const { return engine_ == nullptr ? pending_ : engine_->AnyPending(); }

  bool Begin(const PyBuffer& residual, const PyBuffer& states,
             const std::optional<PyBuffer>& velocity, const std::optional<PyBuffer>& room,
             float loss_scale, float momentum, float dampening, StreamHandle stream) const {
    StepMemory memory;
    memory.residual = FloatsOf(residual, "residual");
    memory.states = StatesOf(states);
    if (velocity) memory.velocity = FloatsOf(*velocity, "velocity");
    if (room) memory.room = FloatsOf(*room, "room");
    memory.loss_scale = loss_scale;
    memory.momentum = momentum;
    memory.dampening = dampening;
    memory.origin = OriginOf(stream);
    return (*this)->Begin(memory);
  }

  bool Launch(int op, const std::vector<PyBuffer>& gradients, const std::vector<float>& decays,
              StreamHandle stream) const {
    std::vector<GradView> views;
    for (const PyBuffer& gradient : gradients) views.push_back(ViewOf(gradient));
    const py::gil_scoped_release release;
    return (*this)->Launch(op, views, decays, OriginOf(stream));
  }

  std::vector<BucketStats> Wait() const {
    WaitInSlices([this](double seconds) { return (*this)->Wait(seconds); });
    return (*this)->Stats();
  }

  py::list Samples() const {
    py::list samples;
    for (const StepSample& one : (*this)->Samples()) {
      samples.append(py::make_tuple(one.bucket, ArrayOf(one.accumulated), ArrayOf(one.left),
                                    ArrayOf(one.applied)));
    }
    return samples;
  }

 private:
  Origin OriginOf(StreamHandle stream) const {
    const Device device = (*this)->rules().device;
    return device.IsCpu() ? Origin{} : Origin{device, stream};
  }

  OwnProcessPointer<StepEngine> engine_;
  bool pending_ = false;  // once it is closed
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
  using py::gil_scoped_release;
  py::class_<BoundEngine>(m, "StepEngine")
      .def(py::init<Exchange&, const BoundEngine::Ops&, std::vector<DrivenBucket>, StepRules>(),
           py::arg("exchange"), py::arg("ops"), py::arg("buckets"), py::arg("rules"))
      .def("close", &BoundEngine::Close)  // before the exchange is
      .def_property_readonly("room", [](const BoundEngine& self) { return self->Room(); })
      .def(
          "replace",
          [](const BoundEngine& self, std::vector<DrivenBucket> buckets) {
            self->Replace(std::move(buckets));
          },
          py::arg("buckets"))
      .def(
          "reorder",
          [](const BoundEngine& self, const std::vector<int>& order) { self->Reorder(order); },
          py::arg("order"))
      .def_property_readonly("pending", &BoundEngine::pending)
      .def(
          "continue_after",
          [](const BoundEngine& self, std::int64_t steps, bool pending) {
            self->ContinueAfter(steps, pending);
          },
          py::arg("steps"), py::arg("pending"))
      .def("begin", &BoundEngine::Begin, py::kw_only(), py::arg("residual"), py::arg("states"),
           py::arg("velocity"), py::arg("room"), py::arg("loss_scale"), py::arg("momentum"),
           py::arg("dampening"), py::arg("stream"))
      .def("launch", &BoundEngine::Launch, py::arg("op"), py::arg("gradients"), py::arg("decays"),
           py::arg("stream"))
      .def("wait", &BoundEngine::Wait)
      .def(
          "commit",
          [](const BoundEngine& self, const std::string& refuse) { self->Commit(refuse); },
          py::arg("refuse"), py::call_guard<gil_scoped_release>())
      .def(
          "commit_part",
          [](const BoundEngine& self, const std::vector<int>& ops, const std::string& refuse) {
            self->CommitPart(ops, refuse);
          },
          py::arg("ops"), py::arg("refuse"), py::call_guard<gil_scoped_release>())
      .def_property_readonly("came", [](const BoundEngine& self) { return self->Came(); })
      .def_property_readonly("residual_norms",
                             [](const BoundEngine& self) { return self->ResidualNorms(); })
      .def("samples", &BoundEngine::Samples)
      .def(
          "abandon", [](const BoundEngine& self) { self->Abandon(); },
          py::call_guard<gil_scoped_release>());
}

}  // namespace hvd_sparse

/// Bindings of step drivers: Python passes an op the address of a driver's function table.

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/driver_interface.h"
#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/step_driver.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// A StepDriver and its function table, through which other libraries call it.
class BoundDriver : public BoundSteps {
 public:
  using Exchanged = std::function<void(const std::vector<BucketStats>&)>;
  using Floats = py::array_t<float>;
  using Measured = std::function<void(std::size_t bucket, std::int64_t step, Floats accumulated,
                                      Floats left, Floats applied)>;
  using StepEnded = std::function<void(const std::vector<double>& came,
                                       const std::shared_ptr<StepReading>& reading)>;

  BoundDriver(Exchange& exchange, const std::vector<std::pair<std::int64_t, std::int64_t>>& ops,
              std::vector<DrivenBucket> buckets, Exchanged exchanged, Measured measured,
              StepEnded step_ended, StepRules rules)
      : driver_(new StepDriver(
            &exchange, OpGradients::Of(ops), std::move(buckets),
            StepDriver::Hooks{Guarded(std::move(exchanged)), Measuring(std::move(measured)),
                              Failing(std::move(step_ended))},
            rules)),
        table_{driver_.get(), &RoomIn, &BeginIn,  &LaunchIn, &SummedIn,
               &SummedAsIn,   &EndIn,  &CancelIn, &FailIn} {
    Open(&driver_->engine());
  }

  std::uintptr_t table() const { return reinterpret_cast<std::uintptr_t>(&table_); }
  bool OnItsThread() const { return driver_ != nullptr && driver_->OnItsThread(); }
  void Close() {
    BoundSteps::Close();
    driver_.reset();
  }
  void Cancel(const std::string& reason) const {
    if (driver_ != nullptr) engine().Cancel(reason);
  }

 private:
  /// Wraps a hook so that a Python error is reported as unraisable, since the driver's thread has
  /// no caller that could catch it.
  static Exchanged Guarded(Exchanged exchanged) {
    if (!exchanged) return nullptr;
    return [exchanged = std::move(exchanged)](const std::vector<BucketStats>& stats) {
      try {
        exchanged(stats);
      } catch (py::error_already_set& error) {
        const py::gil_scoped_acquire acquire;
        error.discard_as_unraisable("hvd_sparse: after a step");
      }
    };
  }

  /// Calls `call`; a Python error in it fails the step.
  template <typename Call>
  static void OrFail(const Call& call) {
    std::string what;
    try {
      return call();
    } catch (py::error_already_set& error) {
      const py::gil_scoped_acquire acquire;
      what = py::str(error.value()).cast<std::string>();
    }
    Throw(ErrorKind::kExchangeFailed, what);
  }

  static std::function<void(const StepEnd&)> Failing(StepEnded step_ended) {
    if (!step_ended) return nullptr;
    return [step_ended = std::move(step_ended)](const StepEnd& ended) {
      OrFail([&] { step_ended(ended.came, ended.reading); });
    };
  }

  static std::function<void(const std::vector<StepSample>&)> Measuring(Measured measured) {
    if (!measured) return nullptr;
    return [measured = std::move(measured)](const std::vector<StepSample>& samples) {
      OrFail([&] {
        const py::gil_scoped_acquire acquire;
        for (const StepSample& one : samples) {
          measured(one.bucket, one.step, ArrayOf(one.accumulated), ArrayOf(one.left),
                   ArrayOf(one.applied));
        }
      });
    };
  }

  static GradView ViewOf(const HvdSparseBuffer& buffer) {
    return {buffer.data, buffer.numel, static_cast<DType>(buffer.dtype)};
  }

  /// Converts an origin. A framework numbers GPUs in its own way, so the origin only tells whether
  /// the memory is on a GPU; the device comes from the driver.
  static Origin OriginOf(StepDriver& driver, const HvdSparseOrigin& origin) {
    if (origin.on_gpu == 0) return {};
    const Device device = driver.engine().rules().device;
    return {{DeviceType::kCuda, device.index}, origin.stream};
  }

  static void Tell(const std::exception_ptr& raised, HvdSparseDone done, void* context) {
    try {
      if (raised) std::rethrow_exception(raised);
      done(context, HVD_SPARSE_DONE, "");
    } catch (const Error& error) {
      done(context, static_cast<std::int32_t>(error.kind()), error.what());
    } catch (const std::exception& error) {
      done(context, static_cast<std::int32_t>(ErrorKind::kExchangeFailed), error.what());
    }
  }

  /// Reports the exception being handled to `done`. The core's own errors have already taken effect
  /// on the exchange; any other, such as a lack of memory, ends it.
  static void TellCaught(StepDriver& driver, HvdSparseDone done, void* context) {
    try {
      throw;
    } catch (const Error&) {
      Tell(std::current_exception(), done, context);
    } catch (...) {
      Tell(std::make_exception_ptr(driver.engine().EndByCaught("an op of a step")), done, context);
    }
  }

  static std::int64_t RoomIn(void* driver) {
    return static_cast<StepDriver*>(driver)->engine().Room();
  }

  static Span<float> FloatsOf(const HvdSparseBuffer& buffer) {
    return {static_cast<float*>(buffer.data), buffer.numel};
  }

  static std::int32_t BeginIn(void* driver, HvdSparseOrigin origin, HvdSparseBuffer residual,
                              HvdSparseBuffer states, HvdSparseBuffer velocity,
                              HvdSparseBuffer room, HvdSparseFactors factors, HvdSparseDone done,
                              void* context) {
    constexpr std::int64_t kFields = sizeof(SelectionState) / sizeof(float);
    auto* const to = static_cast<StepDriver*>(driver);
    bool check_finite = false;
    try {
      StepMemory memory;
      memory.residual = FloatsOf(residual);
      memory.states = {static_cast<SelectionState*>(states.data), states.numel / kFields};
      memory.velocity = FloatsOf(velocity);
      memory.room = FloatsOf(room);
      memory.origin = OriginOf(*to, origin);
      memory.decay = factors.decay;
      memory.momentum = factors.momentum;
      memory.dampening = factors.dampening;
      check_finite = to->Begin(memory);
      Tell(nullptr, done, context);
    } catch (...) {
      TellCaught(*to, done, context);
    }
    return check_finite ? 1 : 0;
  }

  static std::int32_t LaunchIn(void* driver, std::int32_t op, HvdSparseOrigin origin,
                               const HvdSparseBuffer* gradients, std::int32_t count,
                               HvdSparseDone done, void* context) {
    auto* const to = static_cast<StepDriver*>(driver);
    try {
      std::vector<GradView> views;
      for (std::int32_t i = 0; i < count; ++i) views.push_back(ViewOf(gradients[i]));
      return to->Launch(
          op, views,
          [done, context](const std::exception_ptr& raised) { Tell(raised, done, context); },
          OriginOf(*to, origin));
    } catch (...) {
      TellCaught(*to, done, context);
      return 0;
    }
  }

  static void SummedIn(void* driver, const HvdSparseBuffer* sums, std::int32_t count,
                       HvdSparseDone done, void* context) {
    auto* const to = static_cast<StepDriver*>(driver);
    try {
      std::vector<GradView> views;
      for (std::int32_t i = 0; i < count; ++i) views.push_back(ViewOf(sums[i]));
      to->Summed(views);
      Tell(nullptr, done, context);
    } catch (...) {
      TellCaught(*to, done, context);
    }
  }

  static void SummedAsIn(void* driver, std::int32_t finite) {
    static_cast<StepDriver*>(driver)->SummedAs(finite != 0);
  }

  static void EndIn(void* driver, HvdSparseDone done, void* context) {
    static_cast<StepDriver*>(driver)->End(
        [done, context](const std::exception_ptr& raised) { Tell(raised, done, context); });
  }

  static void CancelIn(void* driver, const char* reason) {
    static_cast<StepDriver*>(driver)->engine().Cancel(reason);
  }

  static void FailIn(void* driver, const char* reason) {
    static_cast<StepDriver*>(driver)->engine().Fail(reason);
  }

  OwnProcessPointer<StepDriver> driver_;
  const HvdSparseDriver table_;
};

}  // namespace

void BindDriver(py::module_& m) {
  py::class_<StepReading, std::shared_ptr<StepReading>>(m, "StepReading")
      .def_property_readonly("passed", &StepReading::Passed)
      .def("times", [](const StepReading& self) {
        StepTimes times = self.Times();
        return std::make_tuple(times.step, times.forward, std::move(times.ready));
      });
  // Calls that wait for the driver's thread release the GIL, since that thread may wait for it.
  using py::gil_scoped_release;
  using Ops = std::vector<std::pair<std::int64_t, std::int64_t>>;
  py::class_<BoundDriver, BoundSteps>(m, "StepDriver")
      .def(py::init<Exchange&, const Ops&, std::vector<DrivenBucket>, BoundDriver::Exchanged,
                    BoundDriver::Measured, BoundDriver::StepEnded, StepRules>(),
           py::arg("exchange"), py::arg("ops"), py::arg("buckets"), py::arg("exchanged"),
           py::arg("measured"), py::arg("step_ended"), py::arg("rules"), py::keep_alive<1, 2>())
      .def_property_readonly("table", &BoundDriver::table)
      .def_property_readonly("on_its_thread", &BoundDriver::OnItsThread)
      .def("cancel", &BoundDriver::Cancel, py::arg("reason"), py::call_guard<gil_scoped_release>())
      .def("close", &BoundDriver::Close, py::call_guard<gil_scoped_release>());
}

}  // namespace hvd_sparse

/// Step drivers as Python sees them: as a table of functions, to be handed to an op.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/bindings/driver_interface.h"
#include "csrc/bindings/python_module.h"
#include "csrc/exchange/exchange.h"
#include "csrc/exchange/step_driver.h"

namespace py = pybind11;

namespace hvd_sparse {
namespace {

/// A StepDriver, and the table of functions by which others call it.
class BoundDriver {
 public:
  using AfterStep = std::function<void()>;

  BoundDriver(Exchange& exchange, std::vector<DrivenBucket> buckets, AfterStep after_step)
      : driver_(std::make_unique<StepDriver>(&exchange, std::move(buckets),
                                             Guarded(std::move(after_step)))),
        table_{driver_.get(), &LaunchIn, &CancelIn, &FailIn} {}

  std::uintptr_t table() const { return reinterpret_cast<std::uintptr_t>(&table_); }
  std::int64_t steps() const { return driver_ == nullptr ? 0 : driver_->steps(); }
  void Close() { driver_.reset(); }
  void Cancel(const std::string& reason) const {
    if (driver_ != nullptr) driver_->Cancel(reason);
  }

 private:
  /// The driver's thread has no caller to whom an error of Python could go.
  static AfterStep Guarded(AfterStep after_step) {
    if (!after_step) return nullptr;
    return [after_step = std::move(after_step)] {
      try {
        after_step();
      } catch (py::error_already_set& error) {
        const py::gil_scoped_acquire acquire;
        error.discard_as_unraisable("hvd_sparse: after a step");
      }
    };
  }

  static GradView ViewOf(const HvdSparseBuffer& buffer) {
    return {buffer.data, buffer.numel, static_cast<DType>(buffer.dtype)};
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

  static void LaunchIn(void* driver, std::int32_t place, const HvdSparseBuffer* gradients,
                       std::int32_t count, HvdSparseBuffer residual, HvdSparseBuffer states,
                       HvdSparseDone done, void* context) {
    constexpr std::int64_t kFields = sizeof(SelectionState) / sizeof(float);
    std::vector<GradView> views;
    for (std::int32_t i = 0; i < count; ++i) views.push_back(ViewOf(gradients[i]));
    try {
      static_cast<StepDriver*>(driver)->Launch(
          place, std::move(views), {static_cast<float*>(residual.data), residual.numel},
          {static_cast<SelectionState*>(states.data), states.numel / kFields},
          [done, context](const std::exception_ptr& raised) { Tell(raised, done, context); });
    } catch (const Error&) {
      Tell(std::current_exception(), done, context);
    }
  }

  static void CancelIn(void* driver, const char* reason) {
    static_cast<StepDriver*>(driver)->Cancel(reason);
  }

  static void FailIn(void* driver, const char* reason) {
    static_cast<StepDriver*>(driver)->Fail(reason);
  }

  std::unique_ptr<StepDriver> driver_;
  const HvdSparseDriver table_;
};

}  // namespace

void BindDriver(py::module_& m) {
  using Phases = std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>>;
  py::class_<DrivenBucket>(m, "DrivenBucket")
      .def(py::init([](int bucket, float scale, float output_scale, Phases ks) {
             return DrivenBucket{bucket, scale, output_scale, std::move(ks)};
           }),
           py::arg("bucket"), py::kw_only(), py::arg("scale"), py::arg("output_scale"),
           py::arg("ks"));
  // What waits for the driver's thread waits without the GIL, for which that thread may wait.
  using py::gil_scoped_release;
  py::class_<BoundDriver>(m, "StepDriver")
      .def(py::init<Exchange&, std::vector<DrivenBucket>, BoundDriver::AfterStep>(),
           py::arg("exchange"), py::arg("buckets"), py::arg("after_step"), py::keep_alive<1, 2>())
      .def_property_readonly("table", &BoundDriver::table)
      .def_property_readonly("steps", &BoundDriver::steps)
      .def("cancel", &BoundDriver::Cancel, py::arg("reason"), py::call_guard<gil_scoped_release>())
      .def("close", &BoundDriver::Close, py::call_guard<gil_scoped_release>());
}

}  // namespace hvd_sparse

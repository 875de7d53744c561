/// Points in the work of a device, with the methods of torch.cuda.Event.

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "csrc/bindings/python_buffers.h"
#include "csrc/bindings/python_module.h"
#include "csrc/devices/kernels_for.h"

namespace py = pybind11;

namespace hvd_sparse {

void BindMarks(py::module_& m) {
  py::class_<TimedMark>(m, "TimedMark")
      .def(py::init([](const std::string& device) {
             return KernelsFor(DeviceFrom(device)).NewTimedMark();
           }),
           py::arg("device"))
      .def("record", &TimedMark::Record, py::arg("stream"))
      .def("query", &TimedMark::Passed)
      .def(
          "elapsed_time",
          [](const TimedMark& self, const TimedMark& end) { return 1e3 * self.SecondsUntil(end); },
          py::arg("end_event"), "Milliseconds until another one of the device.");
}

}  // namespace hvd_sparse

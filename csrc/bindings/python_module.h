/// The parts of hvd_sparse._core; each function adds its part's names to the module.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace hvd_sparse {

/// Calls `arrived` with the GIL released, with seconds to wait, until it returns true; between two
/// calls Ctrl-C takes effect.
template <typename Arrived>
void WaitInSlices(const Arrived& arrived) {
  constexpr double kSlice = 0.1;
  for (;;) {
    {
      const pybind11::gil_scoped_release release;  // peers may be threads of this interpreter
      if (arrived(kSlice)) return;
    }
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  }
}

/// Returns a copy of numbers as a NumPy array.
inline pybind11::array_t<float> ArrayOf(const std::vector<float>& numbers) {
  return pybind11::array_t<float>(static_cast<pybind11::ssize_t>(numbers.size()), numbers.data());
}

void BindFacts(pybind11::module_& m);     ///< by which Python plans
void BindKernels(pybind11::module_& m);   ///< kernels and wire formats that Python measures
void BindMarks(pybind11::module_& m);     ///< points in the work of a device
void BindExchange(pybind11::module_& m);  ///< exchanges, and what they run over
void BindEngine(pybind11::module_& m);    ///< step engines; call after BindExchange
void BindDriver(pybind11::module_& m);    ///< step drivers; call after BindEngine

}  // namespace hvd_sparse

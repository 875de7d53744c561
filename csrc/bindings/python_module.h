/// The parts of hvd_sparse._core; each function adds its part's names to the module.

#ifndef HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_
#define HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_

#include <pybind11/pybind11.h>

namespace hvd_sparse {

void BindFacts(pybind11::module_& m);     ///< by which Python plans
void BindKernels(pybind11::module_& m);   ///< kernels and wire formats that Python measures
void BindMarks(pybind11::module_& m);     ///< points in the work of a device
void BindExchange(pybind11::module_& m);  ///< exchanges, and what they run over
void BindEngine(pybind11::module_& m);    ///< step engines; call after BindExchange
void BindDriver(pybind11::module_& m);    ///< step drivers; call after BindEngine

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_

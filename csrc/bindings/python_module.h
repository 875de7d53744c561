/// The parts of hvd_sparse._core, each of which adds its names to the module.

#ifndef HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_
#define HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_

#include <pybind11/pybind11.h>

namespace hvd_sparse {

void BindKernels(pybind11::module_& m);   ///< for tests and benchmarks
void BindMarks(pybind11::module_& m);     ///< points in the work of a device
void BindExchange(pybind11::module_& m);  ///< and what it runs over
void BindDriver(pybind11::module_& m);    ///< after BindExchange

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BINDINGS_PYTHON_MODULE_H_

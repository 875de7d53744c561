/// The parts of hvd_sparse._core; each function adds its part's names to the module.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/exchange/step_engine.h"

namespace hvd_sparse {

/// Deletes an object in the process that made it. In a forked child it leaks the object, whose
/// threads are the parent's: locks that they hold would never be released there, and waits for them
/// would never end.
template <typename T>
struct OwnProcessDelete {
  pid_t process = ::getpid();

  void operator()(T* object) const {
    if (process == ::getpid()) delete object;
  }
};

template <typename T>
using OwnProcessPointer = std::unique_ptr<T, OwnProcessDelete<T>>;

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

/// The steps of an exchange, which an engine of Python's runs, or the engine of a driver.
class BoundSteps {
 public:
  virtual ~BoundSteps() = default;

  /// Returns the engine; throws ExchangeFailed once it is closed.
  StepEngine& engine() const {
    if (engine_ == nullptr) Throw(ErrorKind::kExchangeFailed, "this exchange is closed");
    return *engine_;
  }

  // What is known of the steps stays once the engine is closed.
  std::int64_t steps() const { return engine_ == nullptr ? steps_ : engine_->steps(); }
  bool pending() const { return engine_ == nullptr ? pending_ : engine_->AnyPending(); }

 protected:
  void Open(StepEngine* engine) { engine_ = engine; }

  /// Called before the engine is destroyed.
  void Close() {
    steps_ = steps();
    pending_ = pending();
    engine_ = nullptr;
  }

 private:
  StepEngine* engine_ = nullptr;
  std::int64_t steps_ = 0;
  bool pending_ = true;
};

void BindFacts(pybind11::module_& m);  ///< by which Python plans
void BindKernels(
    pybind11::module_& m);  ///< kernels, wire formats and marks, by which Python measures
void BindExchange(pybind11::module_& m);  ///< exchanges, and what they run over
void BindEngine(pybind11::module_& m);    ///< step engines; call after BindExchange
void BindDriver(pybind11::module_& m);    ///< step drivers; call after BindEngine

}  // namespace hvd_sparse

/// A StepDriver as plain C, for libraries that are loaded beside the core: they are compiled
/// against a framework, whose version of the C++ library the core need not share.

#ifndef HVD_SPARSE_BINDINGS_DRIVER_INTERFACE_H_
#define HVD_SPARSE_BINDINGS_DRIVER_INTERFACE_H_

#include <stdint.h>

extern "C" {

/// Consecutive numbers; dtype as hvd_sparse::DType.
struct HvdSparseBuffer {
  void* data;
  int64_t numel;
  int32_t dtype;
};

/// `kind`: of hvd_sparse::ErrorKind, or HVD_SPARSE_DONE. `message` lives as long as the call.
typedef void (*HvdSparseDone)(void* context, int32_t kind, const char* message);

enum { HVD_SPARSE_DONE = -1 };

struct HvdSparseDriver {
  void* driver;

  /// StepDriver::Launch; what that would throw goes to `done`, too.
  void (*launch)(void* driver, int32_t place, const HvdSparseBuffer* gradients, int32_t count,
                 HvdSparseBuffer residual, HvdSparseBuffer states, HvdSparseDone done,
                 void* context);

  /// StepDriver::Cancel and StepDriver::Fail.
  void (*cancel)(void* driver, const char* reason);
  void (*fail)(void* driver, const char* reason);
};

}  // extern "C"

#endif  // HVD_SPARSE_BINDINGS_DRIVER_INTERFACE_H_

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

/// Where memory lies: on a GPU, which has been given what writes it as work of `stream`; or in the
/// memory of the CPU.
struct HvdSparseOrigin {
  int32_t on_gpu;
  uintptr_t stream;
};

/// `kind`: of hvd_sparse::ErrorKind, or HVD_SPARSE_DONE. `message` lives as long as the call. What
/// a function below would throw goes here, too; it is called exactly once unless said otherwise,
/// and throws nothing.
typedef void (*HvdSparseDone)(void* context, int32_t kind, const char* message);

enum { HVD_SPARSE_DONE = -1 };

struct HvdSparseDriver {
  void* driver;

  /// StepDriver::Room.
  int64_t (*room)(void* driver);

  /// StepDriver::Begin; `done` is called before it returns. States lie in the memory of the CPU.
  /// Returns 1 if it matters that sums are finite.
  int32_t (*begin)(void* driver, HvdSparseOrigin origin, HvdSparseBuffer residual,
                   HvdSparseBuffer states, HvdSparseBuffer velocity, HvdSparseBuffer room,
                   float decay, HvdSparseDone done, void* context);

  /// StepDriver::Launch. Returns 1 if the piece passes: then `done` is not called.
  int32_t (*launch)(void* driver, int32_t piece, HvdSparseOrigin origin,
                    const HvdSparseBuffer* gradients, int32_t count, HvdSparseDone done,
                    void* context);

  /// StepDriver::Summed, of the CPU's memory; `done` is called before it returns. And
  /// StepDriver::SummedAs, which does not fail.
  void (*summed)(void* driver, const HvdSparseBuffer* sums, int32_t count, HvdSparseDone done,
                 void* context);
  void (*summed_as)(void* driver, int32_t finite);

  /// StepDriver::End.
  void (*end)(void* driver, HvdSparseDone done, void* context);

  /// StepDriver::Cancel and StepDriver::Fail.
  void (*cancel)(void* driver, const char* reason);
  void (*fail)(void* driver, const char* reason);
};

}  // extern "C"

#endif  // HVD_SPARSE_BINDINGS_DRIVER_INTERFACE_H_

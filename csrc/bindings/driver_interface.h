/// The C interface of a StepDriver, for libraries that are loaded beside the core. They are
/// compiled against a framework, whose version of the C++ library may differ from the core's.

#pragma once

#include <stdint.h>

extern "C" {

/// A view of consecutive numbers; dtype is an hvd_sparse::DType.
struct HvdSparseBuffer {
  void* data;
  int64_t numel;
  int32_t dtype;
};

/// The place of memory: on a GPU, where earlier work of `stream` writes it, or in CPU memory.
struct HvdSparseOrigin {
  int32_t on_gpu;
  uintptr_t stream;
};

/// Factors of a step; see hvd_sparse::StepMemory.
struct HvdSparseFactors {
  float decay, momentum, dampening;
};

/// Reports the result of a function below, including the error that it would throw. `kind` is an
/// hvd_sparse::ErrorKind or HVD_SPARSE_DONE; `message` is valid during the call only. It is called
/// exactly once unless said otherwise, and must not throw.
typedef void (*HvdSparseDone)(void* context, int32_t kind, const char* message);

enum { HVD_SPARSE_DONE = -1 };

struct HvdSparseDriver {
  void* driver;

  /// StepEngine::Room.
  int64_t (*room)(void* driver);

  /// StepDriver::Begin; calls `done` before it returns. States lie in CPU memory. Returns 1 if
  /// sums must be checked for values that are not finite.
  int32_t (*begin)(void* driver, HvdSparseOrigin origin, HvdSparseBuffer residual,
                   HvdSparseBuffer states, HvdSparseBuffer velocity, HvdSparseBuffer room,
                   HvdSparseFactors factors, HvdSparseDone done, void* context);

  /// StepDriver::Launch. Returns 1, and does not call `done`, if the op is sent dense.
  int32_t (*launch)(void* driver, int32_t op, HvdSparseOrigin origin,
                    const HvdSparseBuffer* gradients, int32_t count, HvdSparseDone done,
                    void* context);

  /// StepDriver::Summed, for sums in CPU memory, which calls `done` before it returns; and
  /// StepDriver::SummedAs, which does not fail.
  void (*summed)(void* driver, const HvdSparseBuffer* sums, int32_t count, HvdSparseDone done,
                 void* context);
  void (*summed_as)(void* driver, int32_t finite);

  /// StepDriver::End.
  void (*end)(void* driver, HvdSparseDone done, void* context);

  /// StepEngine::Cancel and StepEngine::Fail.
  void (*cancel)(void* driver, const char* reason);
  void (*fail)(void* driver, const char* reason);
};

}  // extern "C"

/// A device's environment for kernels that are compiled as plain C++; included before everything
/// else, as nvcc does with its own header.
///
/// The threads of a block are fibers. Each runs until it meets a barrier of its warp or its block,
/// which it leaves once all others have met it, too. Blocks run one after the other, or several at
/// a time while a Resident lives.
///
/// Results show whether a kernel's arithmetic and its order of steps are right. They cannot show a
/// missing barrier, since fibers switch only at barriers; ThreadSanitizer does: see order.h.
/// Nothing here measures speed.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_DEVICE_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __host__
#define __device__
#define __global__ static
#define __launch_bounds__(...)
#define __builtin_assume(holds)

namespace hvd_sparse::emulation {

struct Dimension {
  unsigned x;
};

/// Runs a kernel: `body` in every thread of `blocks` blocks of `threads`, a multiple of 32. An
/// empty grid is an error, which cudaGetLastError returns.
void Launch(unsigned blocks, unsigned threads, cudaStream_t stream,
            const std::function<void()>& body);

/// Returns the running block's memory of the variable declared `__shared__` at `place`; filled with
/// garbage at first.
void* SharedAt(const void* place, std::size_t bytes);

template <typename T>
T& OfBlock(const void* place) {
  return *static_cast<T*>(SharedAt(place, sizeof(T)));
}

/// Makes launches run `blocks` blocks at a time while it lives; fewer if ThreadSanitizer runs out
/// of threads.
class Resident {
 public:
  explicit Resident(unsigned blocks);
  ~Resident();
};

/// Lets other threads run.
void Yield();

void BlockBarrier();
void Fence();
void Changes(const void* word);  ///< atomically

/// Returns the word that `lane` of this warp passed to the same call.
std::uint64_t OfLane(std::uint64_t own, int lane);

/// Returns this thread's lane in its warp.
int OwnLane();

template <typename T>
T Shuffle(T own, int lane) {
  std::uint64_t word = 0;
  std::memcpy(&word, &own, sizeof(own));
  word = OfLane(word, lane);
  std::memcpy(&own, &word, sizeof(own));
  return own;
}

}  // namespace hvd_sparse::emulation

extern hvd_sparse::emulation::Dimension threadIdx, blockIdx, gridDim;

inline void __syncthreads() { hvd_sparse::emulation::BlockBarrier(); }

template <typename T>
T __shfl_sync(unsigned, T own, int lane) {
  return hvd_sparse::emulation::Shuffle(own, lane);
}
template <typename T>
T __shfl_xor_sync(unsigned, T own, int mask) {
  return hvd_sparse::emulation::Shuffle(own, hvd_sparse::emulation::OwnLane() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T own, int distance) {
  const int lane = hvd_sparse::emulation::OwnLane();
  return hvd_sparse::emulation::Shuffle(own, lane < distance ? lane : lane - distance);
}
unsigned __ballot_sync(unsigned, bool holds);
inline bool __any_sync(unsigned mask, bool holds) { return __ballot_sync(mask, holds) != 0; }

template <typename T>
T atomicAdd(T* to, T value) {
  hvd_sparse::emulation::Changes(to);
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicOr(T* to, T bits) {
  hvd_sparse::emulation::Changes(to);
  return __atomic_fetch_or(to, bits, __ATOMIC_RELAXED);
}
template <typename T>
T atomicMax(T* to, T value) {
  hvd_sparse::emulation::Changes(to);
  T before = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (before < value && !__atomic_compare_exchange_n(to, &before, value, false, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
  }
  return before;
}
inline void __threadfence() { hvd_sparse::emulation::Fence(); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_DEVICE_H_

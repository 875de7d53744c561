/// How kernels read and write gradients and residuals, and the arithmetic of error feedback.
///
/// The results have the bits of csrc/kernels/cpu_accumulate.cc: every operation is rounded by
/// itself (intrinsics, which the compiler never fuses), and narrow types are widened by the same
/// code.

#pragma once

#include <cfloat>
#include <cstdint>

#include "csrc/base/error.h"
#include "csrc/base/sparse_block.h"
#include "csrc/kernels/half.h"
#include "csrc/kernels/kernels.h"

namespace hvd_sparse::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline bool IsFinite(float x) { return fabsf(x) <= FLT_MAX; }

/// Returns the bits of |x|, which order like the magnitudes, or 0 for NaN, which is never selected.
__device__ inline std::uint32_t Magnitude(float x) {
  const std::uint32_t bits = FloatBits(x) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0 : bits;
}

// ---- Four neighbours at a time ------------------------------------------------------------------

/// Four neighbouring elements, which one instruction (for double: two) loads or stores.
template <typename T>
struct alignas(sizeof(T) < 4 ? 8 : 16) Four {
  T at[4];
};

template <typename T>
__host__ __device__ bool IsAligned(const T* memory) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignof(Four<T>) == 0;
}

/// Loads four elements from `from` on; those beyond the first `left` are zero.
template <typename T>
__device__ Four<T> LoadFour(const T* from, std::int64_t left, bool is_aligned) {
  if (is_aligned && left >= 4) return *reinterpret_cast<const Four<T>*>(from);
  Four<T> four = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < left) four.at[j] = from[j];
  }
  return four;
}

template <typename T>
__device__ void StoreFour(const Four<T>& four, std::int64_t left, bool is_aligned, T* to) {
  if (is_aligned && left >= 4) {
    *reinterpret_cast<Four<T>*>(to) = four;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < left) to[j] = four.at[j];
  }
}

// ---- How a pass changes the residual ------------------------------------------------------------

// An Inflow, the values added to four entries, is loaded separately, before any of it is used: a
// compiler moves no load across the branches of another one, and so a thread waits once for all
// loads in flight. No branch depends on values. Only the first `left` of four entries exist; the
// others may become anything.

/// Leaves the residual as it is: the gradient has been added before.
struct AsItIs {
  static constexpr bool kChanges = false;

  struct Inflow {};

  __device__ float Join(std::int64_t /*i*/, float before, unsigned* /*bad*/) const {
    return before;
  }
  __device__ Inflow LoadInflow(std::int64_t /*i*/, std::int64_t /*left*/) const { return {}; }
  __device__ Four<float> JoinFour(std::int64_t /*i*/, std::int64_t /*left*/,
                                  const Four<float>& before, const Inflow& /*inflow*/,
                                  unsigned* /*bad*/) const {
    return before;
  }
};

/// residual = decay * residual + scale * gradient, as Feedback describes it. With factors of 1 the
/// products are exact, so that case needs no code of its own.
template <typename T>
struct WithGradient {
  static constexpr bool kChanges = true;

  using Inflow = Four<T>;

  const T* gradient;
  float decay, scale;
  bool is_aligned;

  __host__ __device__ WithGradient(const void* memory, float decay, float scale)
      : gradient(static_cast<const T*>(memory)),
        decay(decay),
        scale(scale),
        is_aligned(IsAligned(gradient)) {}
  explicit WithGradient(const Feedback& feedback)
      : WithGradient(feedback.grad.data, feedback.decay, feedback.scale) {}

  /// Returns one entry of the new residual; counts a sum that is not finite in `bad`.
  __device__ float Add(float before, T gradient_there, unsigned* bad) const {
    const float decayed = __fmul_rn(decay, before);
    const float sum = __fadd_rn(decayed, __fmul_rn(scale, Widen(gradient_there)));
    const float kept = IsFinite(decayed) ? decayed : before;
    *bad += IsFinite(sum) ? 0u : 1u;
    return IsFinite(sum) ? sum : kept;
  }

  __device__ float Join(std::int64_t i, float before, unsigned* bad) const {
    return Add(before, gradient[i], bad);
  }

  __device__ Inflow LoadInflow(std::int64_t i, std::int64_t left) const {
    return LoadFour(gradient + i, left, is_aligned);
  }

  __device__ Four<float> JoinFour(std::int64_t /*i*/, std::int64_t left, const Four<float>& before,
                                  const Inflow& inflow, unsigned* bad) const {
    Four<float> after;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned is_bad = 0;
      after.at[j] = Add(before.at[j], inflow.at[j], &is_bad);
      *bad += j < left ? is_bad : 0;
    }
    return after;
  }
};

/// Calls `call` with a value of the number type `dtype`.
template <typename Call>
void WithTypeOf(DType dtype, Call call) {
  switch (dtype) {
    case DType::kFloat32:
      return call(float());
    case DType::kFloat64:
      return call(double());
    case DType::kFloat16:
      return call(Float16());
    case DType::kBFloat16:
      return call(BFloat16());
  }
  Throw(ErrorKind::kInvalidArgument, "unknown number type ", static_cast<int>(dtype));
}

/// Calls `call` with the WithGradient of the gradient's number type.
template <typename Call>
void WithGradientOf(const Feedback& feedback, Call call) {
  WithTypeOf(feedback.grad.dtype,
             [&](auto number) { call(WithGradient<decltype(number)>(feedback)); });
}

/// Like WithTypeOf, but on the device, where every type has been checked.
template <typename Call>
__device__ void WithTypeOnDevice(DType dtype, Call call) {
  switch (dtype) {
    case DType::kFloat32:
      return call(float());
    case DType::kFloat64:
      return call(double());
    case DType::kFloat16:
      return call(Float16());
    case DType::kBFloat16:
      return call(BFloat16());
  }
}

// ---- Sums over a warp ---------------------------------------------------------------------------

/// Returns the sum over the lanes of a warp, on all of them; pairs are added in a fixed order.
template <typename T>
__device__ T WarpSum(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

/// Returns the sum over this lane and those before it.
__device__ inline unsigned WarpPrefixSum(unsigned x, int lane) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

// ---- Kernels with one thread per entry of a block -----------------------------------------------

constexpr int kEntryThreads = 256;

/// Returns how many blocks of kEntryThreads threads cover `count` entries.
inline unsigned BlocksForEntries(std::int64_t count) {
  return static_cast<unsigned>((count + kEntryThreads - 1) / kEntryThreads);
}

/// Returns the number of this thread's entry.
__device__ inline std::int64_t OwnEntry() {
  return std::int64_t{blockIdx.x} * kEntryThreads + threadIdx.x;
}

/// Like Position(), but on the device.
__device__ inline std::uint32_t PositionOf(Index marked) {
  return static_cast<std::uint32_t>(marked) & ~kSurvivedBit;
}

}  // namespace hvd_sparse::cuda

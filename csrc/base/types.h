/// The types that all layers share: numbers, views, the device on which gradients lie, and the
/// route of a step.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

/// Marks functions that run on the CPU and, where nvcc compiles them, on GPUs.
#ifdef __CUDACC__
#define HVD_SPARSE_INLINE __host__ __device__ inline __attribute__((always_inline))
#else
#define HVD_SPARSE_INLINE inline __attribute__((always_inline))
#endif

namespace hvd_sparse {

/// Position of an entry in its bucket. A bucket has fewer than 2^31 entries.
using Index = std::int32_t;

/// The most entries that a bucket may have.
constexpr std::int64_t kMaxBucketNumel = INT32_MAX;

/// Number types of gradients. Residuals and blocks are float32, whatever the type of the gradient.
enum class DType : int { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3 };

/// Bytes of one number.
constexpr std::int64_t SizeOf(DType dtype) {
  return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
}

/// The entries [begin, end) of a bucket, or of a block.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Returns the entries that both ranges hold.
constexpr Range Overlap(Range a, Range b) {
  const std::int64_t begin = a.begin < b.begin ? b.begin : a.begin;
  const std::int64_t end = a.end < b.end ? a.end : b.end;
  return {begin, end < begin ? begin : end};
}

/// A non-owning view of consecutive elements.
template <typename T>
struct Span {
  T* data = nullptr;
  std::int64_t size = 0;

  Span() = default;
  Span(T* data, std::int64_t size) : data(data), size(size) {}
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  Span(Span<U> other) : data(other.data), size(other.size) {}  // NOLINT: T -> const T is implicit
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  Span(std::vector<U>& v)  // NOLINT: a vector is viewed implicitly
      : data(v.data()), size(static_cast<std::int64_t>(v.size())) {}
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<const U (*)[], T (*)[]>>>
  Span(const std::vector<U>& v)  // NOLINT: a vector is viewed implicitly
      : data(v.data()), size(static_cast<std::int64_t>(v.size())) {}

  T& operator[](std::int64_t i) const { return data[i]; }
  T* begin() const { return data; }
  T* end() const { return data + size; }
  Span Sub(std::int64_t offset, std::int64_t count) const { return {data + offset, count}; }
};

/// A dense gradient of any supported number type: read by Accumulate, written by Scatter.
struct GradView {
  void* data = nullptr;
  std::int64_t numel = 0;
  DType dtype = DType::kFloat32;

  GradView Sub(std::int64_t offset, std::int64_t count) const {
    return {static_cast<std::uint8_t*>(data) + offset * SizeOf(dtype), count, dtype};
  }
};

// ---- The device on which gradients lie: the CPU, or a GPU ---------------------------------------

enum class DeviceType { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;  ///< number among the devices of its type; 0 for the CPU

  bool IsCpu() const { return type == DeviceType::kCpu; }

  /// The name as frameworks write it: "cpu", "cuda:1".
  std::string Name() const { return IsCpu() ? "cpu" : "cuda:" + std::to_string(index); }
};

/// A framework's stream as a number (a cudaStream_t for CUDA; 0 is the default stream).
using StreamHandle = std::uintptr_t;

// ---- The route of a bucket's step: how its blocks travel ------------------------------

/// The route of a step, which RouteOf (csrc/exchange/route_of.h) chooses. It must be equal on all
/// ranks: they compare it before any of them waits for another's device.
enum class Route : std::uint8_t {
  kCalls,   ///< blocks lie in CPU memory and are sent from there
  kRounds,  ///< the collective's rounds go from device to device
};

/// The route's name as shown to users.
inline const char* NameOf(Route route) {
  switch (route) {
    case Route::kCalls:
      return "calls";
    case Route::kRounds:
      return "device rounds";
  }
  return "unknown";
}

}  // namespace hvd_sparse

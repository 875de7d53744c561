/// The types that all layers share.

#ifndef HVD_SPARSE_BASE_TYPES_H_
#define HVD_SPARSE_BASE_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_TYPES_H_

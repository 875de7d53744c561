/// The verdict on a bucket's step: all gradients and sums are finite, the gradient of a rank is
/// bad, or a sum overflows.
///
/// Each rank sends its verdict, and every collective keeps the worse of two, so that all ranks end
/// with the same one. A bad gradient is worse than a sum that overflows. A bad gradient that its
/// rank has not checked is the worst, then one that holds NaN or Inf; if two are alike, that of the
/// lower rank is worse.
///
/// The headers of blocks contain a verdict as 32 bits, on the wire and on devices. This file alone
/// knows their meaning; the worse of two verdicts has the lower number:
///
///     rank           the gradient of that rank is bad, and the rank has not checked why
///     rank + 2^29    the gradient holds NaN or Inf
///     rank + 2^30    the gradient is finite in its own number type, but exceeds float32
///     2^31 - 2       a sum overflows
///     2^31 - 1       all gradients and sums are finite

#pragma once

#include <cstdint>

#include "csrc/base/types.h"

namespace hvd_sparse {

/// The reason why a gradient cannot join a float32 residual.
enum class GradientFault : std::int32_t {
  kUnchecked = 0,
  kHoldsNonFinite = 1 << 29,
  kBeyondFloat32 = 1 << 30,  ///< finite in its own number type; or beyond what a message carries
};

class Verdict {
 public:
  /// All gradients and sums are finite.
  constexpr Verdict() = default;

  /// The gradient of `rank` is bad.
  HVD_SPARSE_INLINE static constexpr Verdict BadGradient(
      std::int32_t rank, GradientFault fault = GradientFault::kUnchecked) {
    return Verdict(rank + static_cast<std::int32_t>(fault));
  }

  /// All gradients are finite, but a sum of them is not.
  HVD_SPARSE_INLINE static constexpr Verdict Overflow() { return Verdict(kOverflow); }

  HVD_SPARSE_INLINE constexpr bool IsFinite() const { return encoded_ == kFinite; }
  HVD_SPARSE_INLINE constexpr bool IsOverflow() const { return encoded_ == kOverflow; }
  HVD_SPARSE_INLINE constexpr bool IsBadGradient() const { return encoded_ < kOverflow; }

  /// The rank whose gradient is bad, and its fault; valid if IsBadGradient().
  constexpr std::int32_t rank() const {
    return encoded_ % static_cast<std::int32_t>(GradientFault::kHoldsNonFinite);
  }
  constexpr GradientFault fault() const {
    return encoded_ >= static_cast<std::int32_t>(GradientFault::kBeyondFloat32)
               ? GradientFault::kBeyondFloat32
           : encoded_ >= static_cast<std::int32_t>(GradientFault::kHoldsNonFinite)
               ? GradientFault::kHoldsNonFinite
               : GradientFault::kUnchecked;
  }

  /// Notes another verdict: the worse of the two remains.
  HVD_SPARSE_INLINE constexpr void Note(Verdict other) {
    if (other.encoded_ < encoded_) encoded_ = other.encoded_;
  }

  /// Returns true if noting `other` would change nothing.
  constexpr bool Covers(Verdict other) const { return encoded_ <= other.encoded_; }

  /// Returns false for bits that no rank sends.
  constexpr bool IsPossible() const { return encoded_ >= 0; }

  /// The 32 bits, for messages about verdicts that are not possible.
  constexpr std::int32_t encoded() const { return encoded_; }

  HVD_SPARSE_INLINE constexpr bool operator==(Verdict other) const {
    return encoded_ == other.encoded_;
  }
  HVD_SPARSE_INLINE constexpr bool operator!=(Verdict other) const { return !(*this == other); }

 private:
  static constexpr std::int32_t kFinite = INT32_MAX, kOverflow = INT32_MAX - 1;

  HVD_SPARSE_INLINE explicit constexpr Verdict(std::int32_t encoded) : encoded_(encoded) {}

  std::int32_t encoded_ = kFinite;
};
static_assert(sizeof(Verdict) == sizeof(std::int32_t));

}  // namespace hvd_sparse

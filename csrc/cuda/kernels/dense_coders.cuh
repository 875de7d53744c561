/// How a warp codes a block of values of a dense message, with the bits of the CPU's codings in
/// csrc/wire/.
///
/// Each lane has some of the block's values, and replaces them by their errors. A coder says which:
/// value PlaceIn(size, lane, v) of a block of `size` is number v of a lane; -1 stands for none, and
/// such a value is zero.

#pragma once

#include <cstdint>

#include "csrc/cuda/base/entries.cuh"
#include "csrc/wire/codes.h"

namespace hvd_sparse::cuda {

/// Returns the largest of the lanes' numbers, on all of them.
__device__ inline std::uint32_t WarpLargest(std::uint32_t x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = Larger(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

/// Takes values as they are; whoever loaded them keeps them, too.
struct AsTheyAre {
  static constexpr int kOfLane = 2;
  static constexpr std::int64_t kBlock = kWarp * kOfLane;

  static __device__ std::int64_t PlaceIn(std::int64_t size, int lane, int v) {
    const std::int64_t place = lane + kWarp * v;
    return place < size ? place : -1;
  }

  __device__ void Take(std::int64_t /*number*/, std::int64_t /*size*/, int /*lane*/,
                       float* values) {
    for (int v = 0; v < kOfLane; ++v) values[v] = 0;
  }
  __device__ void Finish(int /*lane*/) {}
};

/// Rounds to numbers of 16 bits, T. Codes need no alignment, so bytes are stored one by one.
template <typename T>
struct NarrowFloats : AsTheyAre {
  std::uint8_t* const code;

  explicit __device__ NarrowFloats(std::uint8_t* code) : code(code) {}

  __device__ void Take(std::int64_t number, std::int64_t size, int lane, float* values) {
    for (int v = 0; v < kOfLane; ++v) {
      const std::int64_t place = PlaceIn(size, lane, v);
      if (place < 0) continue;
      const std::uint32_t rounded = RoundedBits<T>(FloatBits(values[v]));
      const std::uint32_t packed = PackedBits<T>(rounded);
      std::uint8_t* const at = code + 2 * (number * kBlock + place);
      at[0] = static_cast<std::uint8_t>(packed);
      at[1] = static_cast<std::uint8_t>(packed >> 8);
      values[v] = __fsub_rn(values[v], BitsFloat(rounded));
    }
  }
};

/// Blocks whose bytes hold fields of words, as codes.h describes them. A lane has all values of
/// each of its bytes, side by side.
template <typename Layout>
struct Fields {
  static constexpr int kPerByte = Layout::kPerByte, kWords = Layout::kWords;
  static constexpr int kBytes = 4 * kWords;
  static constexpr int kOfLane = kBytes / kWarp * kPerByte;
  static constexpr std::int64_t kBlock = kBytes * kPerByte;

  /// Returns the byte that holds a lane's value v.
  static __device__ std::int64_t ByteOf(int lane, int v) { return lane + kWarp * (v / kPerByte); }

  static __device__ std::int64_t PlaceIn(std::int64_t size, int lane, int v) {
    const std::int64_t byte = ByteOf(lane, v), part = v % kPerByte;
    if (size == kBlock) return PlaceOf<Layout>(byte, part);
    const std::int64_t bytes = BytesOf<Layout>(size), place = part * bytes + byte;
    return byte < bytes && place < size ? place : -1;
  }
};

/// Rounds to integers of a type T of integer_coder.h.
template <typename T>
struct ScaledIntegers : Fields<T> {
  using Fields<T>::kOfLane, Fields<T>::kBytes, Fields<T>::kPerByte, Fields<T>::ByteOf;

  std::uint8_t* const code;

  explicit __device__ ScaledIntegers(std::uint8_t* code) : code(code) {}

  __device__ void Take(std::int64_t number, std::int64_t size, int lane, float* values) {
    constexpr int kMostExponent = T::kMostExponent;
    constexpr float kMost = T::kZero - 1.0f, kRounder = T::kRounder;
    constexpr std::uint32_t kField = (1u << T::kBits) - 1;
    std::uint32_t largest = 0;
    for (int v = 0; v < kOfLane; ++v) largest = Larger(largest, FloatBits(values[v]) & ~kSign);
    const int exponent = ExponentOf<T>(WarpLargest(largest));
    const float scale = PowerOfTwo(exponent), inverse = PowerOfTwo(-exponent);
    std::uint8_t* const block = code + number * (1 + kBytes);
    if (lane == 0) *block = static_cast<std::uint8_t>(exponent);
    std::uint32_t byte = 0;
    for (int v = 0; v < kOfLane; ++v) {
      float q = __fmul_rn(values[v], inverse);
      if (exponent == kMostExponent) q = Smaller(Larger(q, -kMost), kMost);
      const float coded = __fadd_rn(q, kRounder);
      values[v] = __fsub_rn(values[v], __fmul_rn(__fsub_rn(coded, kRounder), scale));
      const int part = v % kPerByte;
      byte = (part == 0 ? 0 : byte) | (FloatBits(coded) & kField) << (T::kBits * part);
      const bool is_whole = part == kPerByte - 1;
      if (is_whole && ByteOf(lane, v) < BytesOf<T>(size)) {
        block[1 + ByteOf(lane, v)] = static_cast<std::uint8_t>(byte);
      }
    }
  }
  __device__ void Finish(int /*lane*/) {}
};

/// Finds the largest magnitude, on which the code of ternary values depends; takes nothing.
struct LargestOfAll : AsTheyAre {
  unsigned* const into;
  std::uint32_t largest = 0;

  explicit __device__ LargestOfAll(unsigned* into) : into(into) {}

  __device__ void Take(std::int64_t /*number*/, std::int64_t /*size*/, int /*lane*/,
                       float* values) {
    for (int v = 0; v < kOfLane; ++v) largest = Larger(largest, FloatBits(values[v]) & ~kSign);
  }
  __device__ void Finish(int lane) {
    largest = WarpLargest(largest);
    if (lane == 0) atomicMax(into, largest);
  }
};

/// Rounds to -M, 0 and M; runs of zeros stay as they are.
struct TernaryDigits : Fields<Ternary> {
  const float scale, least;
  std::uint8_t* const code;

  __device__ TernaryDigits(float scale, std::uint8_t* code)
      : scale(scale), least(LeastSent(scale)), code(code) {}

  __device__ void Take(std::int64_t number, std::int64_t size, int lane, float* values) {
    int byte = 0;
    for (int v = 0; v < kOfLane; ++v) {
      const int digit = (values[v] >= least ? 1 : 0) - (values[v] <= -least ? 1 : 0);
      values[v] = __fsub_rn(values[v], __fmul_rn(static_cast<float>(digit), scale));
      const int part = v % kPerByte;
      byte = 3 * (part == 0 ? 0 : byte) + digit;
      const bool is_whole = part == kPerByte - 1;
      if (is_whole && ByteOf(lane, v) < BytesOf<Ternary>(size)) {
        code[number * kBytes + ByteOf(lane, v)] = static_cast<std::uint8_t>(byte + kZeroByte);
      }
    }
  }
  __device__ void Finish(int /*lane*/) {}
};

}  // namespace hvd_sparse::cuda

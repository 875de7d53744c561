/// Random numbers that depend only on the place of their use: equal on every rank and in every run.

#pragma once

#include <cstdint>

namespace hvd_sparse {

/// The n-th draw of a stream: 64 bits. A draw may serve as another stream.
///
/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014.
inline std::uint64_t Draw(std::uint64_t stream, std::uint64_t n) {
  std::uint64_t z = stream + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/// A draw as a number in [0, limit), limit < 2^31.
inline std::int64_t Below(std::int64_t limit, std::uint64_t draw) {
  return static_cast<std::int64_t>((draw >> 32) * static_cast<std::uint64_t>(limit) >> 32);
}

}  // namespace hvd_sparse

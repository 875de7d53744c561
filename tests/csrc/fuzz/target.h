/// The interface of a fuzz target: a function that takes any bytes, and seed inputs.
///
/// LLVMFuzzerTestOneInput, as libFuzzer calls it, hands the bytes to code that reads other ranks'
/// messages. That code may refuse them with an Error. Anything else ends the process: a sanitizer's
/// finding, an exception of another kind, or a failed Demand. driver.cc runs a target without
/// libFuzzer.

#ifndef HVD_SPARSE_TESTS_CSRC_FUZZ_TARGET_H_
#define HVD_SPARSE_TESTS_CSRC_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "csrc/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace hvd_sparse::fuzz {

using Bytes = std::vector<std::uint8_t>;

/// Returns inputs made of valid messages, which are the starting point of mutations.
std::vector<Bytes> Seeds();

/// Ends the process unless `holds`.
inline void Demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// Ends the process unless the error is of a kind that a peer's message may cause.
inline void DemandEnd(const Error& error) {
  Demand(error.kind() == ErrorKind::kExchangeFailed || error.kind() == ErrorKind::kDisagreement,
         "messages that do not fit end the exchange");
}

/// Reads an input from its beginning; returns zeros after its end.
class Reader {
 public:
  Reader(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::size_t taken = left_ < sizeof(T) ? left_ : sizeof(T);
    if (taken > 0) std::memcpy(&value, at_, taken);
    Skip(taken);
    return value;
  }

  /// Reads a number in [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + Take<std::uint16_t>() % (high - low + 1);
  }

  /// Reads at most `size` bytes into memory of exactly their size, so that overreads are found.
  Bytes TakeBytes(std::size_t size) {
    Bytes bytes(at_, at_ + (left_ < size ? left_ : size));
    Skip(bytes.size());
    return bytes;
  }
  Bytes TakeRest() { return TakeBytes(left_); }

  std::size_t left() const { return left_; }

 private:
  void Skip(std::size_t size) {
    at_ += size;
    left_ -= size;
  }

  const std::uint8_t* at_;
  std::size_t left_;
};

/// Writes an input for a Reader.
class Writer {
 public:
  template <typename T>
  Writer& Put(T value) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
    return PutBytes(first, sizeof(value));
  }

  /// Writes a value that Between(low, ...) reads.
  Writer& PutBetween(std::int64_t low, std::int64_t value) {
    return Put(static_cast<std::uint16_t>(value - low));
  }

  Writer& PutBytes(const void* data, std::size_t size) {
    const std::size_t before = bytes_.size();
    bytes_.resize(before + size);
    if (size > 0) std::memcpy(bytes_.data() + before, data, size);
    return *this;
  }

  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace hvd_sparse::fuzz

#endif  // HVD_SPARSE_TESTS_CSRC_FUZZ_TARGET_H_

/// What a fuzz target is: a function that takes any bytes, and inputs to begin with.
///
/// LLVMFuzzerTestOneInput, as libFuzzer calls it, hands the bytes to code that reads what other
/// ranks send. It may refuse them with an Error. All else ends the process: what a sanitizer sees,
/// an exception of another kind, a Demand that does not hold. driver.cc runs a target without
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

/// Inputs made of valid messages: what mutations begin with.
std::vector<Bytes> Seeds();

/// Ends the process unless `holds`.
inline void Demand(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

/// What an error must be that ends an exchange for what another rank sent.
inline void DemandEnd(const Error& error) {
  Demand(error.kind() == ErrorKind::kExchangeFailed || error.kind() == ErrorKind::kDisagreement,
         "messages that do not fit end the exchange");
}

/// Reads an input from its begin; zeros behind its end.
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

  /// A number in [low, high].
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return low + Take<std::uint16_t>() % (high - low + 1);
  }

  /// At most `size` bytes, in memory of exactly their size: reading beyond them is found out.
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

/// Writes what a Reader reads.
class Writer {
 public:
  template <typename T>
  Writer& Put(T value) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
    return PutBytes(first, sizeof(value));
  }

  /// For Between(low, ...).
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

/// Conversions of memory and number types from Python: memory is passed as addresses, never as a
/// framework's objects.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "csrc/base/error.h"
#include "csrc/base/types.h"
#include "csrc/sparsifiers/sparsifier.h"

namespace hvd_sparse {

/// (address, numel, dtype): a hvd_sparse.places.buffer.Buffer.
using PyBuffer = std::tuple<std::uintptr_t, std::int64_t, std::string>;

inline const std::map<std::string, DType>& DTypes() {
  static const std::map<std::string, DType> names = {{"float32", DType::kFloat32},
                                                     {"float64", DType::kFloat64},
                                                     {"float16", DType::kFloat16},
                                                     {"bfloat16", DType::kBFloat16}};
  return names;
}

inline GradView ViewOf(const PyBuffer& buffer) {
  const auto& [address, numel, dtype] = buffer;
  const auto found = DTypes().find(dtype);
  Require(found != DTypes().end(),
          "dtype must be one of float32, float64, float16, bfloat16; got '", dtype, "'");
  return {reinterpret_cast<void*>(address), numel, found->second};  // NOLINT: it is an address
}

inline Span<float> FloatsOf(const PyBuffer& buffer, const char* argument) {
  const GradView view = ViewOf(buffer);
  Require(view.dtype == DType::kFloat32, argument, " must be float32, got ", std::get<2>(buffer));
  return {static_cast<float*>(view.data), view.numel};
}

inline Span<SelectionState> StatesOf(const PyBuffer& buffer) {
  constexpr std::int64_t kFields = sizeof(SelectionState) / sizeof(float);
  const Span<float> floats = FloatsOf(buffer, "states");
  Require(floats.size % kFields == 0, "states must hold ", kFields, " numbers per segment, got ",
          floats.size);
  return {reinterpret_cast<SelectionState*>(floats.data), floats.size / kFields};
}

/// Parses the name of a device: "cpu", or "cuda:" and a number.
inline Device DeviceFrom(const std::string& name) {
  if (name == "cpu") return {};
  constexpr std::size_t kPrefix = 5;
  const std::string number = name.size() > kPrefix ? name.substr(kPrefix) : "";
  Require(name.rfind("cuda:", 0) == 0 && !number.empty() && number.size() < 4 &&
              number.find_first_not_of("0123456789") == std::string::npos,
          "device must be 'cpu', or 'cuda:' and a number, got '", name, "'");
  return {DeviceType::kCuda, std::stoi(number)};
}

}  // namespace hvd_sparse

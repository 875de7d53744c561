#include "csrc/wire/dense_coding.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/kernels/cpu_accumulate.h"
#include "csrc/wire/float_coding.h"
#include "csrc/wire/magnitudes.h"
#include "csrc/wire/scaled_coding.h"
#include "csrc/wire/ternary_coding.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

/// The entries that AccumulateAndTakeCoded works on at a time: a multiple of kScaledBlock.
constexpr std::int64_t kTile = 256;

/// The functions of a type whose codes have a fixed length. Decoding returns false for bytes that
/// are no code of finite values.
struct Coding {
  bool (*take)(Span<float> values, std::uint8_t* code);
  bool (*decode)(const std::uint8_t* code, Span<float> out);
  bool (*add)(const std::uint8_t* code, Span<float> sum);
};

Coding CodingOf(Values type) {
  switch (type) {
    case Values::kFloat32:
      return {TakeFloat32, DecodeFloat32, AddFloat32};
    case Values::kFloat16:
      return {TakeFloat16, DecodeFloat16, AddFloat16};
    case Values::kBFloat16:
      return {TakeBFloat16, DecodeBFloat16, AddBFloat16};
    case Values::kInt8:
      return {TakeInt8, DecodeInt8, AddInt8};
    case Values::kInt4:
      return {TakeInt4, DecodeInt4, AddInt4};
    case Values::kTernary:
    case Values::kBinary:
      break;
  }
  RefuseType(type);
}

template <bool kAdds>
std::int64_t Decode(Values type, Span<const std::uint8_t> code, Span<float> out) {
  std::int64_t bytes = -1;
  if (type == Values::kTernary) {
    bytes = kAdds ? AddTernary(code, out) : DecodeTernary(code, out);
  } else {
    const Coding coding = CodingOf(type);
    const std::int64_t needed = ValueBytes(type, out.size);
    if (needed <= code.size && (kAdds ? coding.add : coding.decode)(code.data, out)) bytes = needed;
  }
  if (bytes >= 0) return bytes;
  Throw(ErrorKind::kExchangeFailed, "received ", code.size, " bytes that do not hold ", out.size,
        " finite values of type ", NameOf(type), ": the message is corrupt");
}

}  // namespace

std::int64_t MostCodeBytes(Values values, std::int64_t count) {
  return values == Values::kTernary ? MostTernaryBytes(count) : ValueBytes(values, count);
}

std::int64_t TakeCoded(DenseFormat format, Span<float> values, std::uint8_t* code,
                       std::int64_t* not_carried) {
  if (format.values == Values::kTernary) {
    return TakeTernary(TernaryScale(format.sparsity, LargestOf(values)), values, code);
  }
  // What is not carried is its own error.
  if (!CodingOf(format.values).take(values, code)) {
    *not_carried += CountNotCarried(format.values, values);
  }
  return ValueBytes(format.values, values.size);
}

std::int64_t AccumulateAndTakeCoded(DenseFormat format, const Feedback& feedback,
                                    std::uint8_t* code, std::int64_t* refused) {
  const Values type = format.values;
  const auto accumulate = cpu::AccumulateFor(feedback.grad.dtype);
  const Span<float> residual = feedback.residual;
  float largest = 0;
  for (std::int64_t begin = 0; begin < residual.size; begin += kTile) {
    const Span<float> tile = residual.Sub(begin, std::min(kTile, residual.size - begin));
    *refused += accumulate(feedback.grad.Sub(begin, tile.size).data, tile.size, feedback.decay,
                           feedback.scale, tile.data);
    if (type == Values::kTernary) {
      largest = std::max(largest, LargestOf(tile));
    } else if (!CodingOf(type).take(tile, code + ValueBytes(type, begin))) {
      *refused += CountNotCarried(type, tile);
    }
  }
  if (type != Values::kTernary) return ValueBytes(type, residual.size);
  return TakeTernary(TernaryScale(format.sparsity, largest), residual, code);
}

std::int64_t DecodeInto(Values values, Span<const std::uint8_t> code, Span<float> out) {
  return Decode<false>(values, code, out);
}

std::int64_t AddDecoded(Values values, Span<const std::uint8_t> code, Span<float> sum) {
  return Decode<true>(values, code, sum);
}

}  // namespace hvd_sparse

#include "csrc/wire/value_coding.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/kernels/clones.h"
#include "csrc/kernels/cpu_kernels.h"
#include "csrc/wire/binary_coder.h"
#include "csrc/wire/float_coder.h"
#include "csrc/wire/integer_coder.h"
#include "csrc/wire/ternary_coding.h"

namespace hvd_sparse {
namespace {

/// Calls call(coder) with the coder of a type that sparse blocks and dense messages have.
///
///     Round, Encode     of RoundValues and EncodeValues
///     Take              of TakeCoded; returns false if a value exceeds LargestCarried
///     Decode<kInto>     returns false for bytes that are no code of such values
template <typename Call>
HVD_SPARSE_INLINE auto WithCoder(Values type, Call call) {
  switch (type) {
    case Values::kFloat32:
      return call(FloatCoder<float>());
    case Values::kFloat16:
      return call(FloatCoder<Float16>());
    case Values::kBFloat16:
      return call(FloatCoder<BFloat16>());
    case Values::kInt8:
      return call(IntegerCoder<Int8>());
    case Values::kInt4:
      return call(IntegerCoder<Int4>());
    case Values::kTernary:
    case Values::kBinary:
      break;
  }
  RefuseType(type);
}

/// Like WithCoder, for types of sparse blocks.
template <typename Call>
HVD_SPARSE_INLINE auto WithBlockCoder(Values type, Call call) {
  return type == Values::kBinary ? call(BinaryCoder()) : WithCoder(type, call);
}

HVD_SPARSE_CLONES bool Take(Values type, Span<float> values, std::uint8_t* code) {
  return WithCoder(
      type, [=](auto coder) __attribute__((always_inline)) { return coder.Take(values, code); });
}

/// Decodes values of all types but ternary.
HVD_SPARSE_CLONES bool Decode(Values type, Into into, const std::uint8_t* code, Span<float> out) {
  return WithCoder(type, [=](auto coder) __attribute__((always_inline)) {
    return into == Into::kSum ? coder.template Decode<Into::kSum>(code, out)
                              : coder.template Decode<Into::kDense>(code, out);
  });
}

std::int64_t DecodeDense(Values type, Into into, Span<const std::uint8_t> code, Span<float> out) {
  std::int64_t bytes = -1;
  if (type == Values::kTernary) {
    bytes = into == Into::kSum ? AddTernary(code, out) : DecodeTernary(code, out);
  } else {
    const std::int64_t needed = ValueBytes(type, out.size);
    if (needed <= code.size && Decode(type, into, code.data, out)) bytes = needed;
  }
  if (bytes >= 0) return bytes;
  Throw(ErrorKind::kExchangeFailed, "received ", code.size, " bytes that do not hold ", out.size,
        " finite values of type ", NameOf(type), ": the message is corrupt");
}

HVD_SPARSE_CLONES float LargestOf(Span<const float> values) {
  return BitsFloat(LargestMagnitude(values.data, values.size));
}

}  // namespace

std::int64_t CountNotCarried(Values type, Span<const float> values) {
  const float largest = LargestCarried(type);
  return largest < FLT_MAX ? CpuKernels().CountAbove(values, largest) : 0;
}

/// Has no early return, which would keep the loop from being vectorised.
HVD_SPARSE_CLONES bool AreFinite(const float* values, std::int64_t count) {
  std::uint32_t special = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    special |= static_cast<std::uint32_t>(!IsFiniteNumber(values[i]));
  }
  return special == 0;
}

HVD_SPARSE_CLONES
void RoundValues(Values type, float* values, std::int64_t count, float* errors) {
  WithBlockCoder(type, [=](auto coder) __attribute__((always_inline)) {
    coder.Round({values, count}, errors);
  });
}

HVD_SPARSE_CLONES
bool EncodeValues(Values type, const float* values, std::int64_t count, std::uint8_t* code) {
  return WithBlockCoder(type, [=](auto coder) __attribute__((always_inline)) {
    return coder.Encode({values, count}, code);
  });
}

HVD_SPARSE_CLONES
bool DecodeValues(Values type, const std::uint8_t* code, std::int64_t count, float* values) {
  return WithBlockCoder(type, [=](auto coder) __attribute__((always_inline)) {
    return coder.template Decode<Into::kBlock>(code, {values, count});
  });
}

std::int64_t MostCodeBytes(Values values, std::int64_t count) {
  return values == Values::kTernary ? MostTernaryBytes(count) : ValueBytes(values, count);
}

std::int64_t TakeCoded(DenseFormat format, Span<float> values, std::uint8_t* code,
                       std::int64_t* not_carried) {
  if (format.values == Values::kTernary) {
    return TakeTernary(TernaryScale(format.scale, LargestOf(values)), values, code);
  }
  // What is not carried is its own error.
  if (!Take(format.values, values, code)) *not_carried += CountNotCarried(format.values, values);
  return ValueBytes(format.values, values.size);
}

std::int64_t AccumulateAndTakeCoded(DenseFormat format, const Feedback& feedback,
                                    std::uint8_t* code, std::int64_t* refused) {
  constexpr std::int64_t kTile = 256;  // entries at a time, a multiple of kScaledBlock
  const Values type = format.values;
  const Span<float> residual = feedback.residual;
  float largest = 0;
  for (std::int64_t begin = 0; begin < residual.size; begin += kTile) {
    const Span<float> tile = residual.Sub(begin, std::min(kTile, residual.size - begin));
    const GradView grad = feedback.grad.Sub(begin, tile.size);
    *refused += cpu::AddGradient(grad.dtype, grad.data, tile.size, feedback.decay, feedback.scale,
                                 tile.data);
    if (type == Values::kTernary) {
      largest = std::max(largest, LargestOf(tile));
    } else {
      TakeCoded(format, tile, code + ValueBytes(type, begin), refused);
    }
  }
  if (type != Values::kTernary) return ValueBytes(type, residual.size);
  return TakeTernary(TernaryScale(format.scale, largest), residual, code);
}

std::int64_t DecodeInto(Values values, Span<const std::uint8_t> code, Span<float> out) {
  return DecodeDense(values, Into::kDense, code, out);
}

std::int64_t AddDecoded(Values values, Span<const std::uint8_t> code, Span<float> sum) {
  return DecodeDense(values, Into::kSum, code, sum);
}

}  // namespace hvd_sparse

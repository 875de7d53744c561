/// How a block travels: which messages the ranks of a bucket have agreed to send.
///
///     header | shape of the indices (packed: first, last) | indices | marks | values | filling
///
/// The plain format is the block as it lies in memory; nothing is copied. In any other one a
/// message is made from the block and read back into one. Its header says how its indices and its
/// values are coded, so that messages of one bucket may differ: indices are packed only where that
/// is smaller, and a finished block travels verbatim to a guest. docs/wire_format.md has the table.
///
/// What comes from another rank may be anything. Every position is checked: they ascend, and lie
/// inside the bucket. So is every value: it is finite, or the header names who is to blame.

#ifndef HVD_SPARSE_WIRE_WIRE_FORMAT_H_
#define HVD_SPARSE_WIRE_WIRE_FORMAT_H_

#include <cstdint>
#include <string>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"

namespace hvd_sparse {

/// What the ranks agree on when they add a bucket.
struct WireFormat {
  bool packed = false;             ///< indices as bits, where that is smaller
  DType values = DType::kFloat32;  ///< or kFloat16, kBFloat16

  bool IsPlain() const { return !packed && values == DType::kFloat32; }
  /// Stands in the header of every block of the bucket.
  std::uint8_t Id() const {
    return static_cast<std::uint8_t>(static_cast<int>(values) << 1 | static_cast<int>(packed));
  }
};

/// "packed indices, bfloat16 values", for errors.
std::string NameOfFormat(std::uint8_t id);

/// How much of a block travels.
enum class Cargo {
  kSums,      ///< positions, and values of the format's type
  kVerbatim,  ///< every bit: values as float32, and the survived bits
};

/// Writes the message of a finished block whose positions ascend; returns its bytes, a multiple of
/// 8 and at most block.message_bytes(). `message` has room for the latter.
///
/// Throws ExchangeFailed if a value is not of the format's type (see CollectiveContext::Narrow).
std::int64_t EncodeBlock(const SparseBlock& block, WireFormat format, Cargo cargo,
                         std::uint8_t* message);

/// Bytes of the message at the start of `available` bytes; throws ExchangeFailed if there is none.
std::int64_t MessageLength(const std::uint8_t* message, std::int64_t available);

/// Reads a message of exactly `bytes` bytes, of any format but a plain one too, into a block with
/// enough capacity. Positions lie in [0, numel).
///
/// Throws ExchangeFailed if it is no such message.
void DecodeBlock(const std::uint8_t* message, std::int64_t bytes, std::int64_t numel,
                 SparseBlock* block);

/// Of a plain message that was parsed into a block: throws ExchangeFailed unless its positions
/// ascend within [0, numel). DecodeBlock has done so.
void CheckPositions(const SparseBlock& block, std::int64_t numel);

/// Throws ExchangeFailed if one of the values that came with this header is not finite, though the
/// header says that no gradient and no sum was so.
void CheckValues(const BlockHeader& header, const float* values, std::int64_t count);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_WIRE_WIRE_FORMAT_H_

/// The wire format of blocks, on which the ranks of a bucket have agreed.
///
///     header | shape of the indices (packed: first, last) | indices | marks | values | padding
///
/// The plain format is the block as it lies in memory; nothing is copied. In any other format the
/// block is encoded into a message and decoded from it. The header says how indices and values are
/// coded, so that messages of one bucket may differ: indices are packed only if that is smaller,
/// and a finished block is sent verbatim to a guest. docs/wire_format.md has the table.
///
/// Received data is not trusted. Positions must ascend and lie inside the bucket, and values must
/// be finite unless the header's verdict is not.

#pragma once

#include <cstdint>
#include <string>

#include "csrc/base/sparse_block.h"
#include "csrc/base/types.h"
#include "csrc/wire/values.h"

namespace hvd_sparse {

/// The format of a bucket's messages, on which the ranks agree when they add the bucket.
struct WireFormat {
  bool packed = false;  ///< true if indices are packed where that is smaller
  Values values = Values::kFloat32;

  bool IsPlain() const { return !packed && values == Values::kFloat32; }
  /// The format's number in the header of every block of the bucket.
  std::uint8_t Id() const {
    return static_cast<std::uint8_t>(static_cast<int>(values) << 1 | static_cast<int>(packed));
  }
};

/// Returns the format's name, for errors: "packed indices, bfloat16 values".
std::string NameOfFormat(std::uint8_t id);

/// The part of a block that a message contains.
enum class Content {
  kSums,      ///< positions, and values of the format's type
  kVerbatim,  ///< all bits: float32 values, and survived bits
};

/// Writes the message of a finished block whose positions ascend; returns its length in bytes, a
/// multiple of 8 and at most block.message_bytes(), for which `message` must have room.
///
/// Throws ExchangeFailed if a value is not a number of the format's type (see
/// CollectiveContext::Narrow).
std::int64_t EncodeBlock(const SparseBlock& block, WireFormat format, Content content,
                         std::uint8_t* message);

/// Returns the length of the message at the start of `available` bytes; throws ExchangeFailed if
/// there is none.
std::int64_t MessageLength(const std::uint8_t* message, std::int64_t available);

/// Decodes a message of exactly `bytes` bytes, of any format including the plain one, into a block
/// with enough capacity.
///
/// Throws ExchangeFailed if the bytes are no such message, or a position lies outside [0, numel).
void DecodeBlock(const std::uint8_t* message, std::int64_t bytes, std::int64_t numel,
                 SparseBlock* block);

/// Throws ExchangeFailed unless the positions of a block ascend within [0, numel): for a plain
/// message that was parsed into a block, since DecodeBlock checks the others.
void CheckPositions(const SparseBlock& block, std::int64_t numel);

/// Throws ExchangeFailed if a value received with this header is not finite, though the header says
/// that all gradients and sums are finite.
void CheckValues(const BlockHeader& header, const float* values, std::int64_t count);

}  // namespace hvd_sparse

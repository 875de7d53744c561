#include "csrc/wire/wire_format.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/wire/index_coding.h"
#include "csrc/wire/value_coding.h"

namespace hvd_sparse {
namespace {

/// The coding of a message's indices: BlockHeader::indices.
enum IndexCoding : std::uint8_t {
  kPlain = 0,            ///< 4 bytes each, survived bits in place
  kPacked = 1,           ///< coded as in index_coding.h
  kPackedWithMarks = 2,  ///< like kPacked, followed by the survived bit of each index
};

/// The first and the last position, which precede packed indices.
struct Ends {
  Index first, last;
};

constexpr std::int64_t kHeaderBytes = sizeof(BlockHeader);

std::int64_t BytesOfBits(std::int64_t bits) { return (bits + 63) / 64 * 8; }

/// Offsets of a message's parts from its start, in bytes.
struct Layout {
  std::int64_t indices, marks, values, end;
};

Layout LayoutOf(const BlockHeader& header, const IndexShape& shape) {
  Layout at{};
  const std::int64_t count = header.count;
  const bool packed = header.indices != kPlain;
  at.indices = kHeaderBytes + (packed ? static_cast<std::int64_t>(sizeof(Ends)) : 0);
  at.marks = at.indices + (packed ? shape.Bytes() : 4 * count);
  at.values = at.marks + (header.indices == kPackedWithMarks ? BytesOfBits(count) : 0);
  at.end = BytesOfBits(8 * (at.values + ValueBytes(static_cast<Values>(header.values), count)));
  return at;
}

IndexShape ShapeOf(std::int64_t count, Ends ends) { return {count, ends.first, ends.last}; }

template <typename T>
T ReadAt(const std::uint8_t* message, std::int64_t byte) {
  T value;
  std::memcpy(&value, message + byte, sizeof(value));
  return value;
}

void EncodeMarks(const Index* indices, std::int64_t count, std::uint8_t* code) {
  for (std::int64_t begin = 0; begin < count; begin += 64) {
    std::uint64_t word = 0;
    const std::int64_t end = std::min(begin + 64, count);
    for (std::int64_t i = begin; i < end; ++i) {
      word |= static_cast<std::uint64_t>(Survived(indices[i])) << (i - begin);
    }
    std::memcpy(code + begin / 8, &word, sizeof(word));
  }
}

void DecodeMarks(const std::uint8_t* code, std::int64_t count, Index* indices) {
  for (std::int64_t i = 0; i < count; ++i) {
    indices[i] = Marked(indices[i], (code[i / 8] >> (i % 8) & 1) != 0);
  }
}

/// The header, shape and layout of the message at the start of `available` bytes.
struct Opened {
  BlockHeader header;
  IndexShape shape;
  Layout at;
};

Opened Open(const std::uint8_t* message, std::int64_t available) {
  const BlockHeader header = SparseBlock::ReadHeader(message, available);
  const auto refuse = [&] [[noreturn]] {
    Throw(ErrorKind::kExchangeFailed, "received ", available,
          " bytes that do not hold the block of ", header.count,
          " entries that they announce: the message is corrupt");
  };
  const bool known =
      header.indices <= kPackedWithMarks && IsKnown(static_cast<Values>(header.values));
  if (!known || header.count < 0) refuse();
  IndexShape shape;
  if (header.indices != kPlain) {
    if (available < kHeaderBytes + static_cast<std::int64_t>(sizeof(Ends))) refuse();
    shape = ShapeOf(header.count, ReadAt<Ends>(message, kHeaderBytes));
    if (header.count == 0 || !shape.IsPossible()) refuse();
  }
  const Layout at = LayoutOf(header, shape);
  if (at.end > available) refuse();
  return {header, shape, at};
}

[[noreturn]] void RefusePositions(std::int64_t count, std::int64_t numel) {
  Throw(ErrorKind::kExchangeFailed, "received a block whose ", count,
        " positions do not ascend within [0, ", numel, "): the message is corrupt");
}

}  // namespace

std::string NameOfFormat(std::uint8_t id) {
  const std::string indices = (id & 1) != 0 ? "packed indices, " : "plain indices, ";
  return Concat(indices, NameOf(static_cast<Values>(id >> 1)), " values");
}

std::int64_t EncodeBlock(const SparseBlock& block, WireFormat format, Content content,
                         std::uint8_t* message) {
  const std::int64_t count = block.count();
  const Index* indices = block.indices();
  BlockHeader header = block.header();
  header.indices = kPlain;
  header.values =
      static_cast<std::uint8_t>(content == Content::kSums ? format.values : Values::kFloat32);
  IndexShape shape;
  if (format.packed && count > 0) {
    const Ends ends{Position(indices[0]), Position(indices[count - 1])};
    shape = ShapeOf(count, ends);
    header.indices = content == Content::kSums ? kPacked : kPackedWithMarks;
    if (LayoutOf(header, shape).values >= kHeaderBytes + 4 * count) {
      header.indices = kPlain;
    } else {
      std::memcpy(message + kHeaderBytes, &ends, sizeof(ends));
    }
  }

  const Layout at = LayoutOf(header, shape);
  std::memset(message + at.end - 8, 0, 8);  // the padding
  std::memcpy(message, &header, sizeof(header));
  if (header.indices == kPlain) {
    std::memcpy(message + at.indices, indices, sizeof(Index) * static_cast<std::size_t>(count));
  } else {
    EncodeIndices(indices, shape, message + at.indices);
  }
  if (header.indices == kPackedWithMarks) EncodeMarks(indices, count, message + at.marks);
  const auto values = static_cast<Values>(header.values);
  if (!EncodeValues(values, block.values(), count, message + at.values)) {
    Throw(ErrorKind::kExchangeFailed, "a block of ", count,
          " entries was sent before its values were rounded to the type that is sent: the "
          "collective must call Narrow first");
  }
  return at.end;
}

std::int64_t MessageLength(const std::uint8_t* message, std::int64_t available) {
  return Open(message, available).at.end;
}

void DecodeBlock(const std::uint8_t* message, std::int64_t bytes, std::int64_t numel,
                 SparseBlock* block) {
  const Opened opened = Open(message, bytes);
  const Layout& at = opened.at;
  if (at.end != bytes) {
    Throw(ErrorKind::kExchangeFailed, "received a block of ", bytes, " bytes, but ",
          opened.header.count, " entries take ", at.end, " bytes");
  }
  BlockHeader header = opened.header;
  header.indices = kPlain;
  header.values = static_cast<std::uint8_t>(Values::kFloat32);
  block->Shape(header);

  const std::int64_t count = header.count;
  Index* indices = block->indices();
  bool valid;
  if (opened.header.indices == kPlain) {
    std::memcpy(indices, message + at.indices, sizeof(Index) * static_cast<std::size_t>(count));
    valid = Ascend(indices, count, numel);
  } else {
    valid = opened.shape.last < numel &&
            DecodeIndices(message + at.indices, bytes - at.indices, opened.shape, indices);
  }
  if (!valid) RefusePositions(count, numel);
  if (opened.header.indices == kPackedWithMarks) DecodeMarks(message + at.marks, count, indices);
  const auto values = static_cast<Values>(opened.header.values);
  if (!DecodeValues(values, message + at.values, count, block->values())) {
    Throw(ErrorKind::kExchangeFailed, "received a block whose ", count, " values are none of type ",
          NameOf(values), ": the message is corrupt");
  }
}

void CheckPositions(const SparseBlock& block, std::int64_t numel) {
  if (!Ascend(block.indices(), block.count(), numel)) RefusePositions(block.count(), numel);
}

void CheckValues(const BlockHeader& header, const float* values, std::int64_t count) {
  if (!header.verdict.IsFinite() || AreFinite(values, count)) return;
  Throw(ErrorKind::kExchangeFailed, "received ", count,
        " values, not all of them finite, of gradients that are: the message is corrupt");
}

}  // namespace hvd_sparse

/// A block's life cycle: it is made empty, written and finished, or parsed from a message.

#include "csrc/base/sparse_block.h"

#include <algorithm>
#include <cstring>

namespace hvd_sparse {
namespace {

/// "HVSP" in the memory of a little-endian machine; exposes a peer of the other byte order.
constexpr std::uint32_t kMagic = 0x50535648u;

/// Throws ExchangeFailed unless a block has room for `count` entries.
void CheckRoom(std::int64_t count, std::int64_t capacity) {
  if (count > capacity) {
    Throw(ErrorKind::kExchangeFailed, "received a block of ", count, " entries, more than the ",
          capacity, " agreed on: do all ranks use the same density?");
  }
}

/// Throws ExchangeFailed unless a message of `bytes` bytes with this header is one block that fits.
void CheckMessage(const BlockHeader& header, std::int64_t bytes, std::int64_t capacity) {
  if (header.count < 0 || bytes != SparseBlock::MessageBytes(header.count)) {
    Throw(ErrorKind::kExchangeFailed, "received a block of ", bytes, " bytes, but ", header.count,
          " entries take ", SparseBlock::MessageBytes(header.count), " bytes");
  }
  if (header.indices != 0 || header.values != 0) {
    Throw(ErrorKind::kExchangeFailed, "received a block whose indices or values are coded (",
          int{header.indices}, ", ", int{header.values}, ") where plain ones were agreed on");
  }
  CheckRoom(header.count, capacity);
}

}  // namespace

void SparseBlock::Reset(std::int64_t capacity) {
  Require(capacity >= 0 && capacity <= kMaxBucketNumel, "a block cannot hold ", capacity,
          " entries");
  buffer_.Reserve(MessageBytes(capacity));
  capacity_ = capacity;
  stride_ = capacity;
  header() = BlockHeader{};
  header().magic = kMagic;
}

void SparseBlock::Finish(std::int64_t count) {
  Require(count >= 0 && count <= stride_, "a block with room for ", stride_,
          " entries cannot hold ", count);
  if (count != stride_) std::memmove(indices() + count, values(), sizeof(float) * count);
  stride_ = count;
  header().count = static_cast<std::int32_t>(count);
}

BlockHeader SparseBlock::ReadHeader(const void* message, std::int64_t bytes) {
  BlockHeader header;
  if (bytes < static_cast<std::int64_t>(sizeof(header))) {
    Throw(ErrorKind::kExchangeFailed, "received ", bytes,
          " bytes, fewer than the header of a block has");
  }
  std::memcpy(&header, message, sizeof(header));
  if (header.magic != kMagic) {
    Throw(ErrorKind::kExchangeFailed, "received ", bytes,
          " bytes that are no block of hvd_sparse: the ranks are out of step, or run different "
          "versions or machines of different byte order");
  }
  if (!header.verdict.IsPossible()) {
    Throw(ErrorKind::kExchangeFailed, "received a block that tells of a rank ",
          header.verdict.encoded(), ": the message is corrupt");
  }
  return header;
}

void SparseBlock::Shape(const BlockHeader& shape) {
  CheckRoom(shape.count, capacity_);
  header() = shape;
  stride_ = shape.count;
}

void SparseBlock::Parse(const void* message, std::int64_t bytes) {
  CheckMessage(ReadHeader(message, bytes), bytes, capacity_);
  std::memcpy(buffer_.data(), message, static_cast<std::size_t>(bytes));
  stride_ = header().count;
}

void SparseBlock::ParseInPlace(std::int64_t bytes) {
  CheckMessage(ReadHeader(buffer_.data(), bytes), bytes, capacity_);
  stride_ = header().count;
}

void SparseBlock::CopyFrom(const SparseBlock& other) {
  if (this == &other) return;
  Reset(other.capacity_);
  std::memcpy(buffer_.data(), other.buffer_.data(),
              static_cast<std::size_t>(other.message_bytes()));
  stride_ = other.count();
}

Range SparseBlock::EntriesIn(Range positions) const {
  const Index* const end = indices() + count();
  const auto before = [this, end](std::int64_t position) {
    return std::lower_bound(indices(), end, position) - indices();
  };
  return {before(positions.begin), before(positions.end)};
}

}  // namespace hvd_sparse

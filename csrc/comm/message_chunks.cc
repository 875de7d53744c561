#include "csrc/comm/message_chunks.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace hvd_sparse {

MessageChunks::MessageChunks(Direction direction, void* data, std::int64_t bytes,
                             std::int64_t limit)
    : direction_(direction),
      data_(static_cast<std::uint8_t*>(data)),
      bytes_(bytes),
      limit_(limit) {}

MessageChunks::Chunk MessageChunks::Post() {
  const bool sends = direction_ == Direction::kOut;
  const Part part = next_;
  ++on_their_way_;
  if (part == Part::kLength) {
    // A receiver learns the next part once this one has arrived.
    next_ = sends && following_ > 0 ? Part::kRest : Part::kNothing;
    return {&following_, sizeof(following_)};
  }
  const bool first = part == Part::kFirst;
  const std::int64_t end = first ? bytes_ : limit_ + following_;
  const Chunk chunk{data_ + posted_, std::min(limit_, end - posted_)};
  posted_ += chunk.bytes;
  if (first) {
    next_ = sends && chunk.bytes == limit_ ? Part::kLength : Part::kNothing;
    if (sends) following_ = bytes_ - chunk.bytes;
  } else if (posted_ == end) {
    next_ = Part::kNothing;
  }
  return chunk;
}

void MessageChunks::Arrived(std::int64_t bytes) {
  --on_their_way_;
  if (direction_ == Direction::kOut) {
    moved_ = done() ? bytes_ : moved_;
  } else {
    Received(bytes);
  }
}

void MessageChunks::Received(std::int64_t bytes) {
  switch (awaited_) {
    case Part::kFirst:
      moved_ = bytes;
      awaited_ = next_ = bytes == limit_ ? Part::kLength : Part::kNothing;
      return;
    case Part::kLength:
      if (bytes != sizeof(following_) || following_ < 0 || following_ > bytes_ - moved_) {
        Throw(ErrorKind::kDisagreement, "the ranks disagree: a message of ", moved_, " bytes and ",
              following_, " more came where at most ", bytes_, " were expected");
      }
      awaited_ = next_ = following_ > 0 ? Part::kRest : Part::kNothing;
      return;
    default:
      moved_ += bytes;
      if (done() && moved_ != limit_ + following_) {
        Throw(ErrorKind::kDisagreement, "the ranks disagree: ", moved_, " bytes came of a message ",
              "of ", limit_ + following_);
      }
  }
}

}  // namespace hvd_sparse

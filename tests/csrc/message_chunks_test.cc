/// A message arrives whole, whatever its length, the limit and the number of chunks in flight.

#include "csrc/comm/message_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <vector>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// A network: chunks come out in the order in which they went in.
struct Wire {
  std::deque<Bytes> chunks;
};

/// Sends and receives with at most `window` chunks posted on either side; returns the number of
/// chunks. Of chunks that arrived together, the last is reported first.
int Deliver(MessageChunks* sender, MessageChunks* receiver, int window) {
  Wire wire;
  std::deque<MessageChunks::Chunk> posted;
  int count = 0;
  while (!sender->done() || !receiver->done()) {
    const int before = count;
    std::vector<std::int64_t> sent, received;
    while (sender->CanPost() && static_cast<int>(wire.chunks.size()) < window) {
      const MessageChunks::Chunk chunk = sender->Post();
      const auto* bytes = static_cast<const std::uint8_t*>(chunk.data);
      wire.chunks.emplace_back(bytes, bytes + chunk.bytes);
      sent.push_back(chunk.bytes);
      ++count;
    }
    while (receiver->CanPost() && static_cast<int>(posted.size()) < window) {
      posted.push_back(receiver->Post());
    }
    while (!posted.empty() && !wire.chunks.empty()) {
      const Bytes& chunk = wire.chunks.front();
      EXPECT_LE(static_cast<std::int64_t>(chunk.size()), posted.front().bytes);
      std::copy(chunk.begin(), chunk.end(), static_cast<std::uint8_t*>(posted.front().data));
      received.push_back(static_cast<std::int64_t>(chunk.size()));
      wire.chunks.pop_front();
      posted.pop_front();
    }
    std::reverse(received.begin(), received.end());
    for (const std::int64_t bytes : sent) sender->Arrived(bytes);
    for (const std::int64_t bytes : received) receiver->Arrived(bytes);
    if (count == before && received.empty()) {
      ADD_FAILURE() << "both wait for ever";
      break;
    }
  }
  EXPECT_TRUE(wire.chunks.empty());
  EXPECT_TRUE(posted.empty());
  return count;
}

TEST(MessageChunks, AMessageOfAnyLengthArrivesWholeAndItsReceiverLearnsTheLength) {
  for (const std::int64_t limit : {1, 2, 7, 8, 100}) {
    for (const std::int64_t bytes : {0, 1, 6, 7, 8, 14, 99, 100, 101, 200, 1000}) {
      for (const std::int64_t room : {bytes, bytes + 1, bytes + 1000}) {
        for (const int window : {1, 2, 8}) {
          Bytes out(static_cast<std::size_t>(bytes)), in(static_cast<std::size_t>(room));
          std::iota(out.begin(), out.end(), std::uint8_t{1});
          MessageChunks sender(MessageChunks::Direction::kOut, out.data(), bytes, limit);
          MessageChunks receiver(MessageChunks::Direction::kIn, in.data(), room, limit);
          const int chunks = Deliver(&sender, &receiver, window);
          EXPECT_EQ(receiver.moved(), bytes);
          EXPECT_TRUE(std::equal(out.begin(), out.end(), in.begin()));
          const std::int64_t rest = bytes - limit;
          EXPECT_EQ(chunks, rest < 0 ? 1 : 2 + (rest + limit - 1) / limit)
              << bytes << " bytes in chunks of " << limit;
        }
      }
    }
  }
}

TEST(MessageChunks, ASenderNeverWaitsForItsReceiver) {
  Bytes out(1000);
  MessageChunks sender(MessageChunks::Direction::kOut, out.data(), 1000, 100);
  int posted = 0;
  for (; sender.CanPost(); ++posted) sender.Post();
  EXPECT_EQ(posted, 11);
  EXPECT_FALSE(sender.done());
}

/// Returns the kind of error that a receiver with this room throws when these chunks arrive.
ErrorKind Refused(std::int64_t room, const std::vector<Bytes>& chunks) {
  Bytes in(static_cast<std::size_t>(room));
  MessageChunks receiver(MessageChunks::Direction::kIn, in.data(), room, 10);
  try {
    for (const Bytes& chunk : chunks) {
      const MessageChunks::Chunk posted = receiver.Post();
      std::copy(chunk.begin(), chunk.end(), static_cast<std::uint8_t*>(posted.data));
      receiver.Arrived(static_cast<std::int64_t>(chunk.size()));
    }
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::kUnavailable;
}

Bytes Length(std::int64_t following) {
  Bytes bytes(sizeof(following));
  std::memcpy(bytes.data(), &following, sizeof(following));
  return bytes;
}

TEST(MessageChunks, AMessageThatDoesNotFitIsRefusedBeforeItIsReceived) {
  EXPECT_EQ(Refused(25, {Bytes(10), Length(16)}), ErrorKind::kDisagreement);
  EXPECT_EQ(Refused(10, {Bytes(10), Length(1)}), ErrorKind::kDisagreement);
  EXPECT_EQ(Refused(25, {Bytes(10), Length(-1)}), ErrorKind::kDisagreement);
  EXPECT_EQ(Refused(25, {Bytes(10), Length(INT64_MAX)}), ErrorKind::kDisagreement);
  EXPECT_EQ(Refused(25, {Bytes(10), Bytes(3)}), ErrorKind::kDisagreement);
}

TEST(MessageChunks, AMessageThatEndsEarlyIsRefused) {
  EXPECT_EQ(Refused(25, {Bytes(10), Length(15), Bytes(10), Bytes(4)}), ErrorKind::kDisagreement);
}

}  // namespace
}  // namespace hvd_sparse

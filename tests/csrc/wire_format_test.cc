/// Messages of every format: blocks round-trip, and corrupt ones are refused or harmless.

#include "csrc/wire/wire_format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/wire/value_coding.h"
#include "tests/csrc/entries.h"

namespace hvd_sparse {
namespace {

constexpr std::int64_t kNumel = 100000;
constexpr Values kTypes[] = {Values::kFloat32, Values::kFloat16, Values::kBFloat16,
                             Values::kInt8,    Values::kInt4,    Values::kBinary};
const std::vector<std::int64_t> kCounts = {0, 1, 2, 3, 16, 17, 100, 1000, 30000};

/// Returns about `count` entries, some with the survived bit; values of the type, if that is binary
/// of one sign.
SparseBlock RandomBlock(std::int64_t count, Values dtype, std::mt19937* random) {
  Entries entries;
  std::normal_distribution<float> gaussian;
  const double step = static_cast<double>(kNumel) / static_cast<double>(count + 1);
  for (double at = 0; static_cast<std::int64_t>(entries.size()) < count; at += step) {
    const auto place = static_cast<Index>(at) + static_cast<Index>((*random)() % 3);
    const Index last = entries.empty() ? -1 : Position(entries.back().index);
    const Index position = std::max(place, last + 1);
    const float value = gaussian(*random);
    entries.push_back({Marked(position, (*random)() % 3 == 0),
                       dtype == Values::kBinary ? std::fabs(value) : value});
  }
  SparseBlock block = MakeBlock(entries);
  RoundValues(dtype, block.values(), block.count(), nullptr);
  block.header().bucket = 3;
  block.header().step = 5;
  block.header().asked = 7;
  block.header().verdict = Verdict::BadGradient(11);
  return block;
}

std::vector<std::uint8_t> MessageOf(const SparseBlock& block, WireFormat format, Content content) {
  std::vector<std::uint8_t> message(static_cast<std::size_t>(block.message_bytes()), 0xa5);
  const std::int64_t bytes = EncodeBlock(block, format, content, message.data());
  EXPECT_LE(bytes, block.message_bytes());
  EXPECT_EQ(bytes % 8, 0);
  message.resize(static_cast<std::size_t>(bytes));
  return message;
}

void Decode(const std::vector<std::uint8_t>& message, SparseBlock* block) {
  DecodeBlock(message.data(), static_cast<std::int64_t>(message.size()), kNumel, block);
}

TEST(WireFormat, BlocksComeBack) {
  std::mt19937 random(7);
  for (const Values dtype : kTypes) {
    for (const bool packed : {false, true}) {
      for (const std::int64_t count : kCounts) {
        const SparseBlock sent = RandomBlock(count, dtype, &random);
        const auto message = MessageOf(sent, {packed, dtype}, Content::kSums);
        const auto bytes = static_cast<std::int64_t>(message.size());
        EXPECT_EQ(MessageLength(message.data(), bytes), bytes);
        EXPECT_EQ(MessageLength(message.data(), bytes + 100), bytes);
        SparseBlock received;
        received.Reset(count);
        Decode(message, &received);
        ASSERT_EQ(received.count(), count);
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(Position(received.indices()[i]), Position(sent.indices()[i]));
          ASSERT_EQ(FloatBits(received.values()[i]), FloatBits(sent.values()[i]));
        }
        EXPECT_EQ(std::memcmp(&received.header(), &sent.header(), sizeof(BlockHeader)), 0);
      }
    }
  }
}

TEST(WireFormat, VerbatimBlocksComeBackBitForBit) {
  std::mt19937 random(8);
  for (const Values dtype : kTypes) {
    for (const bool packed : {false, true}) {
      for (const std::int64_t count : kCounts) {
        const SparseBlock sent = RandomBlock(count, Values::kFloat32, &random);
        SparseBlock received;
        received.Reset(count + 5);
        Decode(MessageOf(sent, {packed, dtype}, Content::kVerbatim), &received);
        ASSERT_EQ(EntriesOf(received), EntriesOf(sent));
      }
    }
  }
}

TEST(WireFormat, MessagesAreAsSmallAsPromised) {
  std::mt19937 random(9);
  for (const std::int64_t count : {100, 1000, 10000}) {
    const double density = static_cast<double>(count) / kNumel;
    for (const Values dtype : kTypes) {
      const SparseBlock block = RandomBlock(count, dtype, &random);
      const auto bytes =
          static_cast<double>(MessageOf(block, {true, dtype}, Content::kSums).size());
      const auto of_values = static_cast<double>(ValueBytes(dtype, count));
      const double bits = std::log2(1 / density) + 2;
      EXPECT_LE(bytes, static_cast<double>(count) * bits / 8 + of_values + 32 + 32);
    }
  }
}

TEST(WireFormat, ValuesThatWereNotRoundedAreRefused) {
  SparseBlock block = MakeBlock({{1, 1.0f}, {2, 1.0001f}});
  for (const Values dtype :
       {Values::kFloat16, Values::kBFloat16, Values::kInt8, Values::kInt4, Values::kBinary}) {
    std::vector<std::uint8_t> message(static_cast<std::size_t>(block.message_bytes()));
    try {
      EncodeBlock(block, {false, dtype}, Content::kSums, message.data());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
    }
  }
}

TEST(WireFormat, BlocksWithoutRoomAreRefused) {
  std::mt19937 random(10);
  const auto message = MessageOf(RandomBlock(30, Values::kBFloat16, &random),
                                 {true, Values::kBFloat16}, Content::kSums);
  SparseBlock small;
  small.Reset(29);
  EXPECT_THROW(Decode(message, &small), Error);
}

TEST(WireFormat, PositionsOutsideTheBucketAreRefused) {
  for (const bool packed : {false, true}) {
    Entries entries;
    for (Index i = 0; i < 50; ++i) entries.push_back({1000 + 3 * i, 1.0f});
    const SparseBlock sent = MakeBlock(entries);
    const auto message = MessageOf(sent, {packed, Values::kBFloat16}, Content::kSums);
    const auto bytes = static_cast<std::int64_t>(message.size());
    SparseBlock received;
    received.Reset(50);
    DecodeBlock(message.data(), bytes, 1148, &received);
    EXPECT_THROW(DecodeBlock(message.data(), bytes, 1147, &received), Error);
  }
}

TEST(WireFormat, CorruptMessagesAreRefusedOrHoldAValidBlock) {
  std::mt19937 random(11);
  int refused = 0, rounds = 0;
  for (const std::int64_t count : {0, 1, 3, 40, 700}) {
    for (const Values dtype : kTypes) {
      for (int round = 0; round < 800; ++round, ++rounds) {
        const Content content = round % 4 == 0 ? Content::kVerbatim : Content::kSums;
        auto message =
            MessageOf(RandomBlock(count, dtype, &random), {round % 5 != 0, dtype}, content);
        // Half of the damage is in the shape.
        const std::size_t most =
            round % 2 == 0 ? std::min<std::size_t>(48, message.size()) : message.size();
        const std::size_t flips = 1 + random() % 4;
        for (std::size_t i = 0; i < flips; ++i) {
          message[4 + random() % (most - 4)] ^= static_cast<std::uint8_t>(1 << random() % 8);
        }
        if (round % 7 == 0) message.resize(random() % (message.size() + 1));
        if (round % 11 == 0) message.resize(message.size() + random() % 100);
        message.shrink_to_fit();
        SparseBlock received;
        received.Reset(count);
        try {
          Decode(message, &received);
        } catch (const Error& error) {
          ASSERT_EQ(error.kind(), ErrorKind::kExchangeFailed);
          ++refused;
          continue;
        }
        ASSERT_LE(received.count(), count);
        for (std::int64_t i = 0; i < received.count(); ++i) {
          const Index position = Position(received.indices()[i]);
          ASSERT_LT(position, kNumel);
          if (i > 0) {
            ASSERT_LT(Position(received.indices()[i - 1]), position);
          }
        }
      }
    }
  }
  EXPECT_GT(refused, rounds / 4);
}

TEST(WireFormat, NamesTellFormatsApart) {
  EXPECT_EQ(NameOfFormat(WireFormat{}.Id()), "plain indices, float32 values");
  EXPECT_EQ(NameOfFormat(WireFormat{true, Values::kBFloat16}.Id()),
            "packed indices, bfloat16 values");
  EXPECT_EQ(NameOfFormat(0xee), "plain indices, unknown values");
}

}  // namespace
}  // namespace hvd_sparse

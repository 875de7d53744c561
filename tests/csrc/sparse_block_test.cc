/// Blocks survive being sent as a message, and malformed messages are refused.

#include "csrc/base/sparse_block.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

namespace hvd_sparse {
namespace {

SparseBlock MakeBlock(std::int64_t capacity, const std::vector<Index>& indices,
                      const std::vector<float>& values) {
  SparseBlock block;
  block.Reset(capacity);
  std::copy(indices.begin(), indices.end(), block.indices());
  std::copy(values.begin(), values.end(), block.values());
  block.Finish(static_cast<std::int64_t>(indices.size()));
  return block;
}

void ExpectHolds(const SparseBlock& block, const std::vector<Index>& indices,
                 const std::vector<float>& values) {
  ASSERT_EQ(block.count(), static_cast<std::int64_t>(indices.size()));
  EXPECT_EQ(std::vector<Index>(block.indices(), block.indices() + block.count()), indices);
  EXPECT_EQ(std::vector<float>(block.values(), block.values() + block.count()), values);
}

ErrorKind KindOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kUnavailable;
}

TEST(SparseBlock, FinishKeepsTheEntriesOfAPartlyFilledBlock) {
  ExpectHolds(MakeBlock(7, {1, 4, 9}, {1, 2, 3}), {1, 4, 9}, {1, 2, 3});
  ExpectHolds(MakeBlock(3, {1, 4, 9}, {1, 2, 3}), {1, 4, 9}, {1, 2, 3});
  ExpectHolds(MakeBlock(7, {}, {}), {}, {});
  ExpectHolds(MakeBlock(0, {}, {}), {}, {});
}

TEST(SparseBlock, FinishCanShortenAFinishedBlock) {
  SparseBlock block = MakeBlock(7, {1, 4, 9}, {1, 2, 3});
  block.Finish(2);
  ExpectHolds(block, {1, 4}, {1, 2});
  EXPECT_EQ(block.message_bytes(), 32 + 2 * 8);
}

TEST(SparseBlock, ParseGivesBackWhatWasSent) {
  SparseBlock sent = MakeBlock(7, {1, 4, Marked(9, true)}, {1, 2, 3});
  sent.header().bucket = 5;
  sent.header().step = 77;
  sent.header().verdict = Verdict::BadGradient(2);
  const std::vector<std::uint8_t> wire(sent.message(), sent.message() + sent.message_bytes());

  SparseBlock parsed, in_place;
  parsed.Reset(3);
  parsed.Parse(wire.data(), static_cast<std::int64_t>(wire.size()));
  in_place.Reset(30);
  std::memcpy(in_place.message(), wire.data(), wire.size());
  in_place.ParseInPlace(static_cast<std::int64_t>(wire.size()));

  for (const SparseBlock* block : {&parsed, &in_place}) {
    ExpectHolds(*block, {1, 4, Marked(9, true)}, {1, 2, 3});
    EXPECT_EQ(block->header().bucket, 5u);
    EXPECT_EQ(block->header().step, 77u);
    EXPECT_EQ(block->header().verdict, Verdict::BadGradient(2));
  }
}

TEST(SparseBlock, CopyFromCopiesHeaderAndEntries) {
  SparseBlock original = MakeBlock(7, {1, 4}, {1, 2}), copy;
  original.header().step = 3;
  copy.CopyFrom(original);
  ExpectHolds(copy, {1, 4}, {1, 2});
  EXPECT_EQ(copy.header().step, 3u);
  EXPECT_EQ(copy.capacity(), 7);
  copy.CopyFrom(copy);
  ExpectHolds(copy, {1, 4}, {1, 2});
}

TEST(SparseBlock, ResetForgetsHeaderAndEntriesAndGrows) {
  SparseBlock block = MakeBlock(2, {1, 4}, {1, 2});
  block.header().verdict = Verdict::BadGradient(1);
  block.Reset(1000);
  EXPECT_EQ(block.count(), 0);
  EXPECT_TRUE(block.header().verdict.IsFinite());
  EXPECT_EQ(block.max_message_bytes(), 32 + 8000);
}

TEST(SparseBlock, RefusesWhatIsNoBlock) {
  const SparseBlock sent = MakeBlock(3, {1, 4, 9}, {1, 2, 3});
  const std::vector<std::uint8_t> good(sent.message(), sent.message() + sent.message_bytes());
  const auto refuses = [](std::vector<std::uint8_t> wire, std::int64_t capacity) {
    SparseBlock block;
    block.Reset(capacity);
    EXPECT_EQ(KindOf([&] { block.Parse(wire.data(), static_cast<std::int64_t>(wire.size())); }),
              ErrorKind::kExchangeFailed);
  };
  auto bad_magic = good, bad_count = good, cut = good, longer = good;
  bad_magic[0] ^= 1;
  const std::int32_t negative = -1;
  std::memcpy(bad_count.data() + offsetof(BlockHeader, count), &negative, sizeof(negative));
  cut.resize(cut.size() - 1);
  longer.resize(longer.size() + 8);
  refuses(bad_magic, 3);
  refuses(bad_count, 3);
  refuses(cut, 3);
  refuses(longer, 9);
  refuses(good, 2);  // does not fit
  refuses({}, 3);
  refuses({1, 2, 3}, 3);
}

TEST(SparseBlock, RefusesCountsThatCannotBe) {
  SparseBlock block;
  EXPECT_EQ(KindOf([&] { block.Reset(-1); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(KindOf([&] { block.Reset(std::int64_t{1} << 31); }), ErrorKind::kInvalidArgument);
  block.Reset(4);
  EXPECT_EQ(KindOf([&] { block.Finish(5); }), ErrorKind::kInvalidArgument);
}

TEST(SparseBlock, TheSurvivedBitDoesNotTouchThePosition) {
  for (const Index position : {0, 1, 12345, INT32_MAX}) {
    EXPECT_EQ(Position(Marked(position, true)), position);
    EXPECT_EQ(Position(Marked(position, false)), position);
    EXPECT_TRUE(Survived(Marked(position, true)));
    EXPECT_FALSE(Survived(Marked(position, false)));
  }
}

}  // namespace
}  // namespace hvd_sparse

/// A rank refuses malformed blocks that it receives, in every format, and names the sender.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/collectives/sparse_allreduce.h"
#include "csrc/comm/group_communicator.h"
#include "csrc/comm/loopback_communicator.h"
#include "csrc/exchange/bucket.h"
#include "csrc/wire/value_coding.h"
#include "tests/csrc/collective_ranks.h"
#include "tests/csrc/entries.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using Message = std::vector<std::uint8_t>;

constexpr std::int64_t kNumel = 100, kRoom = 10;
const std::vector<WireFormat> kFormats = {{},
                                          {true, Values::kFloat32},
                                          {false, Values::kBFloat16},
                                          {true, Values::kFloat16},
                                          {false, Values::kInt8},
                                          {true, Values::kInt4}};

Message MessageOf(const Entries& entries, WireFormat format, Verdict verdict = {}) {
  SparseBlock block = MakeBlock(entries);
  block.header().format = format.Id();
  block.header().verdict = verdict;
  RoundValues(format.values, block.values(), block.count(), nullptr);
  if (format.IsPlain()) return {block.message(), block.message() + block.message_bytes()};
  Message message(static_cast<std::size_t>(block.message_bytes()));
  message.resize(
      static_cast<std::size_t>(EncodeBlock(block, format, Content::kSums, message.data())));
  return message;
}

/// Returns the error with which rank 1 of a bucket refuses a message of rank 5.
Error Reads(const Message& message, WireFormat format, SparseBlock* theirs) {
  LoopbackCommunicator whole(std::make_shared<LoopbackWorld>(6), 1);
  GroupCommunicator comm(&whole, 1, 4, 2);
  CollectiveScratch scratch;
  CollectiveContext ctx{comm, CpuKernels(), scratch, 5, kRoom, "bucket 'fc'", kNumel, {}, format};
  SparseBlock own;
  own.Reset(0);
  own.Finish(0);
  theirs->Reset(kRoom);
  return Thrown([&] {
    ctx.Unpack(message.data(), static_cast<std::int64_t>(message.size()), &own, theirs, 1);
  });
}

void ExpectRefused(const Message& message, WireFormat format, const std::string& why) {
  SparseBlock theirs;
  const Error error = Reads(message, format, &theirs);
  EXPECT_EQ(error.kind(), ErrorKind::kExchangeFailed);
  EXPECT_TRUE(Says(error, why)) << error.what();
  EXPECT_TRUE(Says(error, "in bucket 'fc', from rank 5: ")) << error.what();
}

void ExpectRead(const Message& message, WireFormat format, const Entries& entries) {
  SparseBlock theirs;
  const Error error = Reads(message, format, &theirs);
  EXPECT_TRUE(Says(error, "nothing was thrown")) << error.what();
  EXPECT_EQ(EntriesOf(theirs), entries);
}

TEST(CorruptBlock, WithoutFaultIsRead) {
  const Entries entries = {{0, 1}, {17, -2}, {99, 4}};
  for (const WireFormat format : kFormats) {
    ExpectRead(MessageOf(entries, format), format, entries);
    ExpectRead(MessageOf({}, format), format, {});
  }
}

TEST(CorruptBlock, WithPositionsOutOfOrderOrOfTheBucketIsRefused) {
  for (const WireFormat format : {kFormats[0], kFormats[2]}) {  // packed ones cannot express it
    for (const Entries& entries : std::vector<Entries>{
             {{3, 1}, {2, 1}}, {{3, 1}, {3, 1}}, {{100, 1}}, {{1, 1}, {kNumel, 1}}, {{-1, 1}}}) {
      ExpectRefused(MessageOf(entries, format), format, "do not ascend within [0, 100)");
    }
  }
}

TEST(CorruptBlock, WithValuesThatAreNotFiniteIsRefusedUnlessTheVerdictIsBad) {
  for (const WireFormat format : kFormats) {
    const bool has_infinity = format.values != Values::kInt8 && format.values != Values::kInt4;
    for (const float value : has_infinity ? std::vector{kInf, -kInf, kNan} : std::vector{kNan}) {
      const Entries entries = {{3, 1}, {50, value}};
      ExpectRefused(MessageOf(entries, format), format, "not all of them finite");
      ExpectRead(MessageOf(entries, format, Verdict::BadGradient(4)), format, entries);
      ExpectRead(MessageOf(entries, format, Verdict::Overflow()), format, entries);
    }
  }
}

TEST(CorruptBlock, WithAHeaderThatCannotBeIsRefused) {
  for (const WireFormat format : kFormats) {
    const Message good = MessageOf({{1, 1}, {2, 2}, {9, 3}}, format);
    const auto changed = [&](std::size_t offset, std::int32_t number) {
      Message message = good;
      std::memcpy(message.data() + offset, &number, sizeof(number));
      return message;
    };
    ExpectRefused(changed(0, 0), format, "no block of hvd_sparse");
    ExpectRefused(changed(offsetof(BlockHeader, verdict), -1), format, "tells of a rank -1");
    for (const std::int32_t count : {-1, 0, 4, 11, INT32_MAX, INT32_MIN}) {
      ExpectRefused(changed(offsetof(BlockHeader, count), count), format, "");
    }
    Message coded = good;
    coded[offsetof(BlockHeader, values)] = 8;
    ExpectRefused(coded, format, format.IsPlain() ? "are coded (0, 8)" : "corrupt");
    for (std::size_t bytes = 0; bytes < good.size(); bytes += 3) {
      ExpectRefused({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(bytes)}, format, "");
    }
  }
}

TEST(CorruptBlock, OfAnotherFormatIsRefused) {
  const Message packed = MessageOf({{1, 1}}, kFormats[1]);
  SparseBlock theirs;
  const Error error = Reads(packed, kFormats[0], &theirs);
  EXPECT_TRUE(
      Says(error, "in bucket 'fc' rank 1 sends plain indices, float32 values, rank 5 packed"))
      << error.what();
}

TEST(CorruptBlock, ThatEndsEarlyInAnAllgatherIsRefused) {
  OnRanks(3, [](Communicator& comm) {
    SparseBlock block = BlockOf(4, 0, 2, 1.0f);
    CollectiveScratch scratch;
    CollectiveContext ctx{comm, CpuKernels(), scratch, 4, 4, "bucket 'fc'", 8};
    if (comm.Rank() == 1) {  // sends a block to rank 2, and half of one to rank 0
      const Outgoing whole{2, block.message(), block.message_bytes()};
      const Outgoing half{0, block.message(), 40};
      comm.Transfer({&whole, 1}, {}, "a test");
      comm.Transfer({&half, 1}, {}, "a test");
      return;
    }
    const Error error = Thrown([&] { FindCollective("allgather").run(&block, ctx); });
    if (comm.Rank() == 0) {
      EXPECT_TRUE(Says(error, "in bucket 'fc', from rank 1: received 40 bytes")) << error.what();
      comm.Fail(ErrorKind::kExchangeFailed, "a test ends here");
    }
  });
}

/// An overflowing sum is no fault of a message: all ranks notice it, and refuse the step.
TEST(CorruptBlock, IsNotWhatASumThatOverflowsMakes) {
  for (const std::string& name : CollectiveNames()) {
    for (const int size : {2, 3, 4, 7}) {
      for (const std::int64_t numel : {8, 100}) {  // dense, and sparse
        for (const WireFormat format : {kFormats[0], kFormats[1]}) {
          OnRanks(size, [&](Communicator& comm) {
            SparseBlock block = MakeBlock({{1, 3e38f}, {3, 1.0f}, {5, -3e38f}, {6, 2.0f}});
            block.header().format = format.Id();
            CollectiveScratch scratch;
            CollectiveContext ctx{comm, CpuKernels(), scratch, 4, 4, "fc", numel, {}, format};
            SendOnAllSums(&ctx);
            FindCollective(name).run(&block, ctx);
            EXPECT_EQ(block.header().verdict, Verdict::Overflow()) << name << " on " << size;
          });
        }
      }
    }
  }
}

/// Makes a received block report no gradient that is not finite.
void Forget(Incoming* message) {
  const Verdict finite;
  if (message->bytes < static_cast<std::int64_t>(sizeof(BlockHeader))) return;
  std::memcpy(static_cast<std::uint8_t*>(message->data) + offsetof(BlockHeader, verdict), &finite,
              sizeof(finite));
}

/// Otherwise a step that other ranks refuse, with its non-finite values, would count on this one.
TEST(CorruptBlock, ThatForgetsWhatARankKnowsMakesNoResult) {
  for (const std::string& name : CollectiveNames()) {
    OnRanks(3, [&](Communicator& comm) {
      const bool knows = comm.Rank() == 2;  // gtopk sends it the result verbatim
      Bucket bucket(0, {"fc", {8}, {8}, {2}, "top_k", {}, name}, NodePlace::Alone(comm.Rank(), 3));
      std::vector<float> gradient(8, 1.0f), residual(8);
      if (knows) gradient[3] = std::nanf("");
      SelectionState state;
      Launch launch;
      launch.gradients = {{gradient.data(), 8, DType::kFloat32}};
      launch.residual = residual;
      launch.states = {&state, 1};
      launch.ks = {2};
      launch.decays = {1};
      bucket.Select(std::move(launch), comm.Rank(), CpuKernels());
      TamperingCommunicator forgetful(&comm, Forget);
      try {
        bucket.step().Reduce(knows ? forgetful : comm, CpuKernels(), nullptr);
        EXPECT_EQ(bucket.verdict(), Verdict::BadGradient(2, GradientFault::kHoldsNonFinite))
            << name;
        EXPECT_FALSE(knows && name == "gtopk");
      } catch (const Error& error) {
        EXPECT_TRUE(knows) << name << ": " << error.what();
        EXPECT_TRUE(Says(error, "rank 2: the result of bucket 'fc' knows of no NaN or Inf"));
      }
    });
  }
}

}  // namespace
}  // namespace hvd_sparse

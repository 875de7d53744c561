/// Records arrive whole and in order, however the stream cuts them; malformed ones break the
/// connection.

#include "csrc/comm/lifeline_wire.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace hvd_sparse {
namespace {

/// Two ends of a stream; tests can write bytes to it that bypass the framing.
struct Wire {
  Wire() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    here = Descriptor::Open([&] { return ends[0]; });
    there = Descriptor::Open([&] { return ends[1]; });
  }
  Descriptor here, there;
};

TEST(LifelineWire, RecordsArriveWholeWhenTheyComeByteByByte) {
  Wire first, second;
  LifelineConnection sender(std::move(first.here));
  LifelineConnection receiver(std::move(second.there));
  sender.Post({RecordKind::kFail, 3, "out of memory", ErrorKind::kOutOfMemory});
  sender.Post({RecordKind::kGoodbye, 0x01020304, "", ErrorKind::kTimeout, 0x0102030405060708});

  char byte;
  std::vector<Record> records;
  while (::recv(first.there.get(), &byte, 1, 0) == 1) {
    ASSERT_EQ(::send(second.here.get(), &byte, 1, 0), 1);
    receiver.Receive();
    while (auto record = receiver.Next()) records.push_back(*record);
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].kind, RecordKind::kFail);
  EXPECT_EQ(records[0].rank, 3);
  EXPECT_EQ(records[0].text, "out of memory");
  EXPECT_EQ(records[0].error, ErrorKind::kOutOfMemory);
  EXPECT_EQ(records[0].steps, 0);
  EXPECT_EQ(records[1].kind, RecordKind::kGoodbye);
  EXPECT_EQ(records[1].rank, 0x01020304);
  EXPECT_EQ(records[1].text, "");
  EXPECT_EQ(records[1].steps, 0x0102030405060708);
}

TEST(LifelineWire, APeerThatReadsSlowlyLosesNothing) {
  Wire wire;
  LifelineConnection sender(std::move(wire.here));
  LifelineConnection receiver(std::move(wire.there));
  constexpr int kRecords = 1000;
  for (int i = 0; i < kRecords; ++i) sender.Post({RecordKind::kLost, i, std::string(1000, 'x')});
  EXPECT_NE(sender.events() & POLLOUT, 0);  // more than the kernel takes

  for (int i = 0; i < kRecords; ++i) {
    auto record = receiver.Next();
    while (!record && receiver.broken() == 0) {
      sender.Flush();
      receiver.Receive();
      record = receiver.Next();
    }
    ASSERT_TRUE(record);
    EXPECT_EQ(record->rank, i);
    EXPECT_EQ(record->text.size(), 1000u);
  }
  sender = LifelineConnection(Descriptor());
  EXPECT_FALSE(receiver.WaitForNext(After(10)));
  EXPECT_EQ(receiver.broken(), -1);
}

TEST(LifelineWire, LongTextsAreCut) {
  Wire wire;
  LifelineConnection sender(std::move(wire.here));
  LifelineConnection receiver(std::move(wire.there));
  sender.Post({RecordKind::kFail, 1, std::string(1 << 20, 'x')});
  const auto record = receiver.WaitForNext(After(10));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->text, std::string(LifelineConnection::kMaxText, 'x'));
}

TEST(LifelineWire, NonsenseBreaksTheConnection) {
  constexpr std::size_t kRest = LifelineConnection::kHeaderBytes - 2;
  const std::string zeros(kRest + 1, '\0');
  for (const std::string& nonsense :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1, '\0') + zeros,
        std::string("\x05\x04") + std::string(kRest, '\xff'), std::string("\x05\xff") + zeros}) {
    Wire wire;
    LifelineConnection receiver(std::move(wire.there));
    ASSERT_GT(::send(wire.here.get(), nonsense.data(), nonsense.size(), 0), 0);
    EXPECT_FALSE(receiver.WaitForNext(After(10)));
    EXPECT_NE(receiver.broken(), 0);
  }
}

TEST(LifelineWire, WaitingEndsAtTheDeadline) {
  Wire wire;
  LifelineConnection receiver(std::move(wire.there));
  EXPECT_FALSE(receiver.WaitForNext(After(0.01)));
  EXPECT_EQ(receiver.broken(), 0);
}

}  // namespace
}  // namespace hvd_sparse

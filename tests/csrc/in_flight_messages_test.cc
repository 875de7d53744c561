/// Bytes sent but still in flight, on a connection whose receiver reads on demand.

#include "csrc/comm/in_flight_messages.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/comm/communicator.h"
#include "csrc/comm/socket.h"
#include "csrc/comm/tcp_stream.h"

namespace hvd_sparse {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// A stream to a peer that is a bare socket.
class Sender {
 public:
  explicit Sender(int peer) : stream_(0, peer) {
    const Listener listener = ListenAt("0.0.0.0");
    Descriptor socket = ConnectTo("127.0.0.1", listener.port, After(10));
    const unsigned rate = 100'000'000;  // bytes per second, as on a network
    ::setsockopt(socket.get(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
    peer_ = Accept(listener.socket);
    stream_.Open(std::move(socket));
  }

  const TcpStream* stream() const { return &stream_; }

  /// Sends as much of a message of 64 MiB as the kernel takes, which is never all of it.
  void Send() {
    stream_.Send({stream_.peer(), message_.data(), static_cast<std::int64_t>(message_.size())});
    while (stream_.Move("a test", false)) {
    }
  }

  /// Makes the peer read a little, if there is anything to read.
  void Read() { ::recv(peer_.get(), read_.data(), read_.size(), MSG_DONTWAIT); }

  /// Closes the peer's end, with bytes unread.
  void Leave() { peer_.Close(); }

 private:
  TcpStream stream_;
  Descriptor peer_;
  Bytes message_ = Bytes(std::size_t{64} << 20u), read_ = Bytes(16'384);
};

TEST(InFlightMessages, WhatIsReadMovesUntilItHasArrived) {
  Sender sender(1);
  InFlightMessages in_flight;
  EXPECT_FALSE(in_flight.Moving(-1));
  sender.Send();
  in_flight.Add(sender.stream());
  int moving = 0;
  while (sender.stream()->under_way() > 0) {
    in_flight.Add(sender.stream());
    if (in_flight.Moving(-1)) ++moving;
    sender.Read();
  }
  EXPECT_GT(moving, 1);
  while (in_flight.Moving(-1)) sender.Read();
  EXPECT_FALSE(in_flight.Moving(-1));
}

TEST(InFlightMessages, WhatNobodyReadsDoesNotMove) {
  Sender sender(1);
  sender.Send();
  InFlightMessages in_flight;
  in_flight.Add(sender.stream());
  const auto start = std::chrono::steady_clock::now();
  while (in_flight.Moving(-1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  EXPECT_GT(sender.stream()->under_way(), 0);
}

TEST(InFlightMessages, MessagesToTheSamePeerDoNotCount) {
  Sender one(1), other(2);
  one.Send();
  InFlightMessages in_flight;
  in_flight.Add(one.stream());
  EXPECT_FALSE(in_flight.Moving(1));
  EXPECT_TRUE(in_flight.Moving(2));
  other.Send();
  in_flight.Add(other.stream());
  EXPECT_TRUE(in_flight.Moving(1));
}

TEST(InFlightMessages, WhatWasSentToAPeerThatIsGoneIsForgotten) {
  Sender sender(1);
  sender.Send();
  InFlightMessages in_flight;
  in_flight.Add(sender.stream());
  sender.Leave();
  EXPECT_FALSE(in_flight.Moving(-1));
}

}  // namespace
}  // namespace hvd_sparse

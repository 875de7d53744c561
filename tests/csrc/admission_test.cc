/// Only the expected ranks are admitted, whoever else connects, and however often.

#include "csrc/comm/admission.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/comm/handshake.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/sha256.h"
#include "tests/csrc/rank_process.h"

namespace hvd_sparse {
namespace {

const char* const kHost = "127.0.0.1";

/// The listening port of rank 3 of an exchange, where ranks 0 to 2 are expected.
struct Port {
  explicit Port(const std::string& ip = kHost) {
    Listener listener = ListenAt(ip);
    number = listener.port;
    admission = std::make_unique<Admission>(std::move(listener), key, 3, 0, 3);
  }

  Descriptor Connect() const { return ConnectTo(kHost, number, After(5)); }

  std::unique_ptr<CallerHandshake> Call(int rank, const std::string& with_key) const {
    return std::make_unique<CallerHandshake>(BeginConnecting(kHost, number), with_key, rank, 3);
  }

  /// Runs until the caller's handshake has ended, for 5 s at most; collects the ranks admitted.
  HandshakeStatus Complete(CallerHandshake* handshake) {
    HandshakeStatus status = handshake->Advance();
    for (const auto deadline = After(5);
         status == HandshakeStatus::kUnderWay && Clock::now() < deadline;
         status = handshake->Advance()) {
      GoOn();
    }
    return status;
  }

  void GoOn() {
    for (Admission::Admitted& one : admission->Advance(true)) admitted.push_back(std::move(one));
  }

  std::vector<int> Ranks() const {
    std::vector<int> ranks;
    for (const Admission::Admitted& one : admitted) ranks.push_back(one.rank);
    return ranks;
  }

  const std::string key = NewKey();
  int number = 0;
  std::unique_ptr<Admission> admission;
  std::vector<Admission::Admitted> admitted;
};

TEST(Admission, ARankThatKnowsTheKeyIsAdmittedAndItsMessagesFollow) {
  Port port;
  const auto handshake = port.Call(1, port.key);
  ASSERT_EQ(port.Complete(handshake.get()), HandshakeStatus::kDone) << handshake->problem();
  ASSERT_EQ(port.Ranks(), std::vector<int>{1});
  const Descriptor socket = handshake->Take();
  ASSERT_EQ(::send(socket.get(), "hello", 5, 0), 5);
  char text[5];
  ASSERT_TRUE(WaitFor(port.admitted[0].socket.get(), POLLIN, After(5)));
  ASSERT_EQ(::recv(port.admitted[0].socket.get(), text, 5, 0), 5);
  EXPECT_EQ(std::string(text, 5), "hello");
}

TEST(Admission, ACallerWithAnotherKeyNoticesItAndSaysNothingMore) {
  Port port;
  const auto handshake = port.Call(1, NewKey());
  EXPECT_EQ(port.Complete(handshake.get()), HandshakeStatus::kFailed);
  EXPECT_EQ(handshake->problem(), "somebody else listens there");
  EXPECT_FALSE(handshake->found());
  port.GoOn();
  EXPECT_TRUE(port.admitted.empty());
}

TEST(Admission, ARankIsAdmittedOnceAndNoOtherNumberIs) {
  Port port;
  const auto first = port.Call(1, port.key);
  ASSERT_EQ(port.Complete(first.get()), HandshakeStatus::kDone);
  for (const int rank : {1, 3, 4, -1}) {
    const auto another = port.Call(rank, port.key);
    EXPECT_EQ(port.Complete(another.get()), HandshakeStatus::kFailed) << rank;
    EXPECT_EQ(another->problem(), "the connection was closed");
  }
  EXPECT_EQ(port.Ranks(), std::vector<int>{1});
}

/// Returns at most `count` bytes received on a connection, fewer if it ends; lets `port` advance.
std::string Receive(const Descriptor& socket, std::size_t count, Port* port) {
  std::string bytes;
  for (const auto deadline = After(5); bytes.size() < count && Clock::now() < deadline;) {
    if (port != nullptr) port->GoOn();
    char buffer[128];
    const ssize_t got = ::recv(socket.get(), buffer, count - bytes.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) break;
    if (got > 0) bytes.append(buffer, static_cast<std::size_t>(got));
  }
  return bytes;
}

TEST(Admission, TheListenerProvesItselfFirstAndTheKeyNeverTravels) {
  const Listener listener = ListenAt(kHost);
  const std::string key = NewKey();
  CallerHandshake handshake(BeginConnecting(kHost, listener.port), key, 1, 3);
  ASSERT_TRUE(WaitFor(handshake.fd(), POLLOUT, After(5)));
  EXPECT_EQ(handshake.Advance(), HandshakeStatus::kUnderWay);
  ASSERT_TRUE(WaitFor(listener.socket.get(), POLLIN, After(5)));
  const Descriptor impostor = Accept(listener.socket);
  const std::string hello = Receive(impostor, 36, nullptr);
  EXPECT_EQ(hello.substr(0, 4), std::string("\x01\0\0\0", 4));
  const std::string guess = RandomBytes(64);
  ASSERT_EQ(::send(impostor.get(), guess.data(), guess.size(), 0), 64);
  ASSERT_TRUE(WaitFor(handshake.fd(), POLLIN, After(5)));
  EXPECT_EQ(handshake.Advance(), HandshakeStatus::kFailed);
  EXPECT_EQ(Receive(impostor, 1, nullptr), "");  // the caller has closed without sending anything
}

TEST(Admission, AProofThatIsRelayedFromAnotherPortIsWorthless) {
  Port port;
  const Listener relay = ListenAt(kHost);
  CallerHandshake handshake(BeginConnecting(kHost, relay.port), port.key, 1, 3);
  ASSERT_TRUE(WaitFor(handshake.fd(), POLLOUT, After(5)));
  handshake.Advance();
  ASSERT_TRUE(WaitFor(relay.socket.get(), POLLIN, After(5)));
  const Descriptor from_caller = Accept(relay.socket), to_listener = port.Connect();
  const std::string hello = Receive(from_caller, 36, nullptr);
  ASSERT_EQ(::send(to_listener.get(), hello.data(), hello.size(), 0), 36);
  const std::string answer = Receive(to_listener, 64, &port);
  ASSERT_EQ(answer.size(), 64u);
  ASSERT_EQ(::send(from_caller.get(), answer.data(), answer.size(), 0), 64);
  ASSERT_TRUE(WaitFor(handshake.fd(), POLLIN, After(5)));
  EXPECT_EQ(handshake.Advance(), HandshakeStatus::kFailed);
  EXPECT_EQ(handshake.problem(), "somebody else listens there");
}

TEST(Admission, AProofOfAnotherConnectionIsWorthless) {
  Port port;
  std::string recorded;
  for (const bool replays : {false, true}) {
    const Descriptor socket = port.Connect();
    const std::string nonce(32, 'n'), ranks("\x01\0\0\0\x03\0\0\0", 8);
    const std::string hello = ranks.substr(0, 4) + nonce;
    ASSERT_EQ(::send(socket.get(), hello.data(), hello.size(), 0), 36);
    const std::string answer = Receive(socket, 64, &port);
    ASSERT_EQ(answer.size(), 64u);
    if (!replays) {
      recorded = HmacSha256(port.key, "hvd_sparse caller\n" + ranks + nonce + answer.substr(0, 32) +
                                          AddressOfPeer(socket));
      EXPECT_EQ(::send(socket.get(), answer.data() + 32, 32, 0), 32);  // the listener's own proof
    } else {
      EXPECT_EQ(::send(socket.get(), recorded.data(), recorded.size(), 0), 32);
    }
    EXPECT_EQ(Receive(socket, 1, &port), "");
  }
  EXPECT_TRUE(port.admitted.empty());
}

TEST(Admission, ThePortClosesWithTheLastRank) {
  Port port;
  const Descriptor stranger = port.Connect();
  for (int rank = 0; rank < 3; ++rank) {
    const auto handshake = port.Call(rank, port.key);
    ASSERT_EQ(port.Complete(handshake.get()), HandshakeStatus::kDone);
  }
  EXPECT_FALSE(port.admission->has_guests());
  EXPECT_FALSE(port.Connect());
  EXPECT_EQ(errno, ECONNREFUSED);
}

TEST(Admission, GuestsAreFewAndThoseWhoSayNothingMakeRoom) {
  Port port;
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 3 * Admission::kMostGuests; ++i) silent.push_back(port.Connect());
  const auto handshake = port.Call(2, port.key);
  std::vector<pollfd> polled;
  while (handshake->Advance() == HandshakeStatus::kUnderWay) {
    port.GoOn();
    polled.clear();
    port.admission->AddTo(false, &polled);
    ASSERT_LE(polled.size(), Admission::kMostGuests);
  }
  EXPECT_EQ(port.Ranks(), std::vector<int>{2}) << handshake->problem();
}

TEST(Admission, WithoutADescriptorGuestsGoAndTheRankComesIn) {
  RankProcess process([](const Instructions& instructions) {
    Port port;
    std::vector<Descriptor> silent;
    for (int i = 0; i < 8; ++i) silent.push_back(port.Connect());
    const auto handshake = port.Call(0, port.key);
    // From here on the limit leaves as many descriptors as four guests need.
    const Descriptor next = port.Connect();
    const rlimit limit{static_cast<rlim_t>(next.get() + 5), static_cast<rlim_t>(next.get() + 5)};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const bool admitted = port.Complete(handshake.get()) == HandshakeStatus::kDone;
    instructions.Answer(admitted ? "admitted" : handshake->problem());
    return 0;
  });
  EXPECT_EQ(process.Answer(), "admitted");
}

}  // namespace
}  // namespace hvd_sparse

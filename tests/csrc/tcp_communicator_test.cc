/// Tests specific to ranks connected by TCP: long messages, lost peers, wrong addresses.

#include "csrc/comm/tcp_communicator.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "csrc/base/error.h"
#include "tests/csrc/tcp_ranks.h"
#include "tests/csrc/thrown.h"

namespace hvd_sparse {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Returns message `i` of a round from one rank to another; all differ.
Bytes Message(int from, int to, int round, int i, std::size_t bytes) {
  Bytes message(bytes);
  unsigned state = static_cast<unsigned>(((from * 31 + to) * 31 + round) * 31 + i);
  for (std::uint8_t& byte : message) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24u);
  }
  return message;
}

/// Sends messages of such sizes to all other ranks, and expects the right ones from them.
void ExchangeAll(Communicator& comm, int round, const std::vector<std::size_t>& sizes) {
  const int rank = comm.Rank();
  const auto most = *std::max_element(sizes.begin(), sizes.end());
  std::vector<Bytes> sent, received;
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int peer = 0; peer < comm.Size(); ++peer) {
    if (peer == rank) continue;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent.push_back(Message(rank, peer, round, static_cast<int>(i), sizes[i]));
      received.emplace_back(most + 1, 0xab);
      out.push_back({peer, sent.back().data(), static_cast<std::int64_t>(sizes[i])});
      in.push_back({peer, received.back().data(), static_cast<std::int64_t>(most)});
    }
  }
  comm.Transfer(out, in, "a round of all with all");
  for (std::size_t at = 0; at < in.size(); ++at) {
    const std::size_t i = at % sizes.size();
    ASSERT_EQ(in[at].bytes, static_cast<std::int64_t>(sizes[i]));
    EXPECT_EQ(received[at].back(), 0xab);
    received[at].resize(sizes[i]);
    EXPECT_EQ(received[at], Message(in[at].peer, rank, round, static_cast<int>(i), sizes[i]));
  }
}

TEST(Tcp, LongMessagesGoBothWaysAtOnce) {
  // More than all buffers of the kernel hold, so nobody could finish sending before receiving.
  TcpRanks(2).Run([](Communicator& comm) { ExchangeAll(comm, 0, {std::size_t{40} << 20u}); });
  TcpRanks(4).Run([](Communicator& comm) { ExchangeAll(comm, 0, {std::size_t{10} << 20u}); });
}

TEST(Tcp, MessagesOfManySizesReachManyPeers) {
  TcpRanks(9).Run([](Communicator& comm) {
    for (int round = 0; round < 10; ++round) {
      ExchangeAll(comm, round, {0, 1, 100'000, 0, 7, 8, 9, 4096, 1, 2, 3, 4, 5, 6, 0});
    }
  });
}

/// Sets HVD_SPARSE_CONNECTIONS while it lives.
struct Connections {
  explicit Connections(const char* number) { ::setenv("HVD_SPARSE_CONNECTIONS", number, 1); }
  ~Connections() { ::unsetenv("HVD_SPARSE_CONNECTIONS"); }
};

/// Returns the number of this process's sockets, whatever they are for.
int Sockets() {
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    sockets += std::filesystem::read_symlink(entry, gone).string().rfind("socket:", 0) == 0;
  }
  return sockets;
}

TEST(Tcp, SeveralConnectionsShareLongMessages) {
  const std::size_t undivided = 32 * 1024;
  for (const char* number : {"2", "3", "16"}) {
    const Connections connections(number);
    TcpRanks ranks(3);
    const int before = Sockets();
    ranks.Run([&](Communicator& comm) {
      ExchangeAll(comm, 0, {0, 1, undivided, undivided + 1, undivided + 2, 100'003, 0, 5});
      for (int round = 1; round < 4; ++round) ExchangeAll(comm, round, {std::size_t{3} << 20u, 7});
    });
    // Both ends of the connections of three pairs, while the ports of ranks 1 and 2 have closed.
    EXPECT_EQ(Sockets() - before, 2 * 3 * std::atoi(number) - 2);
  }
}

TEST(Tcp, AMessageWithoutRoomIsRefusedOnEveryConnection) {
  const Connections connections("4");
  TcpRanks ranks(2);
  ranks.Run([](Communicator& comm) {
    Bytes memory(100'000, 1);
    const Outgoing out{1, memory.data(), 100'000};
    if (comm.Rank() == 0) return comm.Transfer({&out, 1}, {}, "a test");
    Incoming in{0, memory.data(), 99'999};
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "a test"); });
    EXPECT_TRUE(Says(error, "rank 0 sent 100000 bytes to rank 1, which expected at most 99999"))
        << error.what();
  });
}

TEST(Tcp, APeerOfSeveralConnectionsThatLeavesIsNamedOnce) {
  const Connections connections("4");
  TcpRanks ranks(2);
  ranks.Run([](Communicator& comm) { ExchangeAll(comm, 0, {100'000}); });
  ranks.Leave(1);
  char byte = 0;
  Incoming in{1, &byte, 1};
  const Error error = Thrown([&] { ranks[0].Transfer({}, {&in, 1}, "bucket 3"); });
  EXPECT_TRUE(Says(error, "rank 0 was waiting for rank 1 in bucket 3")) << error.what();
}

TEST(Tcp, ManySmallMessagesFollowEachOther) {
  TcpRanks(2).Run([](Communicator& comm) {
    ExchangeAll(comm, 0, std::vector<std::size_t>(1000, 11));
    for (int round = 1; round < 300; ++round) ExchangeAll(comm, round, {5});
  });
}

TEST(Tcp, ARankThatComesLaterIsWaitedFor) {
  for (const int late : {0, 1}) {
    TcpRanks(2).Run([late](Communicator& comm) {
      if (comm.Rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ExchangeAll(comm, late, {1000});
    });
  }
}

TEST(Tcp, APeerThatDoesNotReadKeepsNobodyFromItsMessage) {
  // More than is accepted for a receiver that does not read, but less than both kernels' buffers.
  constexpr std::size_t kBytes = 300'000;
  std::atomic<bool> arrived = false;
  TcpRanks(3).Run([&](Communicator& comm) {
    ExchangeAll(comm, 0, {1});
    Bytes memory(kBytes, 1);
    if (comm.Rank() == 0) {
      for (const int peer : {1, 2}) {
        const Outgoing out{peer, memory.data(), kBytes};
        comm.Transfer({&out, 1}, {}, "a test");
      }
      return;
    }
    while (comm.Rank() == 1 && !arrived) std::this_thread::yield();
    Incoming in{0, memory.data(), kBytes};
    comm.Transfer({}, {&in, 1}, "a test");
    if (comm.Rank() == 2) arrived = true;
  });
}

TEST(Tcp, AMessageWithoutRoomEndsTheTransferAndIsNotWritten) {
  TcpRanks ranks(2, {}, false);
  ranks.Run([](Communicator& comm) {
    Bytes memory(20, 1);
    const Outgoing out{1, memory.data(), 20};
    if (comm.Rank() == 0) return comm.Transfer({&out, 1}, {}, "a test");
    Incoming in{0, memory.data(), 10};
    const Error error = Thrown([&] { comm.Transfer({}, {&in, 1}, "a test"); });
    EXPECT_EQ(error.kind(), ErrorKind::kDisagreement);
    EXPECT_STREQ(error.what(),
                 "the ranks disagree: rank 0 sent 20 bytes to rank 1, which expected at most 10, "
                 "in a test");
    EXPECT_EQ(memory, Bytes(20, 1));
    const Error later = Thrown([&] { comm.Transfer({}, {}, "more"); });
    EXPECT_EQ(later.kind(), ErrorKind::kExchangeFailed);
    EXPECT_TRUE(Says(later, "nothing more can be sent since the ranks disagree")) << later.what();
  });
}

TEST(Tcp, WhatARankSendsItselfItMustReceive) {
  TcpRanks ranks(1);
  char byte = 0;
  const Outgoing out{0, &byte, 1};
  Incoming in{0, &byte, 1};
  const Error sent = Thrown([&] { ranks[0].Transfer({&out, 1}, {}, "a test"); });
  EXPECT_TRUE(Says(sent, "rank 0 sends itself a message that it does not receive in a test"));
  const Error awaited = Thrown([&] { ranks[0].Transfer({}, {&in, 1}, "a test"); });
  EXPECT_TRUE(Says(awaited, "rank 0 waits for itself in a test"));
}

// ------------------------------------------------------------------------- ranks that are gone

/// Returns the error of rank `waiting` when it waits for the other of two ranks, which has left.
Error AfterLeaving(int waiting, bool met_before, bool watched) {
  TcpRanks ranks(2, {}, watched);
  if (met_before) ranks.Run([](Communicator& comm) { ExchangeAll(comm, 0, {100}); });
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks.Leave(1 - waiting);
  });
  char byte = 0;
  Incoming in{1 - waiting, &byte, 1};
  const auto start = Clock::now();
  Error error = Thrown([&] { ranks[waiting].Transfer({}, {&in, 1}, "bucket 3"); });
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));  // else it would wait for ever
  leaving.join();
  return error;
}

TEST(Tcp, TheLifelineSaysWhyAConnectionBroke) {
  for (const int waiting : {0, 1}) {
    for (const bool met_before : {true, false}) {
      const Error error = AfterLeaving(waiting, met_before, true);
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLeft);
      EXPECT_EQ(error.what(),
                Concat("rank ", 1 - waiting, " of 2 left exchange '", kName, "'; rank ", waiting,
                       " was waiting for rank ", 1 - waiting, " in bucket 3"));
    }
  }
}

TEST(Tcp, WithoutALifelineTheConnectionItselfIsReported) {
  for (const int waiting : {0, 1}) {
    const Error error = AfterLeaving(waiting, true, false);
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_EQ(error.what(), Concat("rank ", waiting, " has lost rank ", 1 - waiting,
                                   " (it has closed the connection) in bucket 3"));
  }
}

TEST(Tcp, MessagesOfARankThatHasLeftStillArrive) {
  TcpRanks ranks(2);
  ranks.Run([](Communicator& comm) { ExchangeAll(comm, 0, {1}); });
  Bytes sent(50'000, 7), received(50'000);
  const Outgoing out{0, sent.data(), 50'000};
  ranks[1].Transfer({&out, 1}, {}, "the last words");
  ranks.Leave(1);
  Incoming in{1, received.data(), 50'000};
  ranks[0].Transfer({}, {&in, 1}, "the last words");
  EXPECT_EQ(received, sent);
}

// ----------------------------------------------------------------------------------- addresses

TEST(Tcp, StrangersAreDroppedWithoutDisturbing) {
  std::vector<TcpPort> ports(2);
  const std::vector<std::string> addresses{ports[0].Address(), ports[1].Address()};
  const int port = ListenAddress::Parse(addresses[1]).port;
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 3; ++i) strangers.push_back(ConnectTo("127.0.0.1", port, After(10)));
  const std::string nonsense(100, 'x');
  ASSERT_EQ(::send(strangers[0].get(), nonsense.data(), nonsense.size(), 0), 100);
  strangers[1].Close();  // the third one sends nothing

  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const TcpOptions options{rank, addresses, {}};
      const auto comm = MakeTcpCommunicator(options, &ports[rank], nullptr);
      ExchangeAll(*comm, 0, {1000});
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Returns rank 0's error of two, whose peer advertises these addresses; if `watched`, both have
/// lifelines.
Error ConnectingTo(const std::vector<std::string>& ips, bool watched = false) {
  std::vector<TcpPort> ports(2);
  auto peer = ListenAddress::Parse(ports[1].Address());
  peer.ips = ips;
  const std::vector<std::string> addresses{ports[0].Address(), peer.Text()};
  auto lifelines = TcpRanks::Lifelines(watched ? 2 : 0);
  lifelines.resize(2);
  const auto one = [&](int rank) {
    WaitLimits limits;
    limits.fail_seconds = 2;
    const auto comm = MakeTcpCommunicator({rank, addresses, limits}, &ports[rank], lifelines[rank]);
    ExchangeAll(*comm, 0, {1000});
  };
  std::thread other([&] { Thrown([&] { one(1); }); });
  Error error = Thrown([&] { one(0); });
  other.join();
  return error;
}

TEST(Tcp, AddressesThatLeadNowhereArePassedOver) {
  EXPECT_STREQ(ConnectingTo({"255.255.255.255", "no address", "127.0.0.1"}).what(),
               "nothing was thrown");
}

/// True if this host's loopback interface has an IPv6 address.
bool HasV6() {
  const auto ips = LocalAddresses();
  return std::find(ips.begin(), ips.end(), "::1") != ips.end();
}

TEST(Tcp, APeerIsReachedThroughIPv6Alone) {
  if (!HasV6()) GTEST_SKIP() << "this host has no IPv6";
  EXPECT_STREQ(ConnectingTo({"::1"}).what(), "nothing was thrown");
  EXPECT_STREQ(ConnectingTo({"::1"}, true).what(), "nothing was thrown");  // the lifeline, too
}

TEST(Tcp, AnAddressOfIPv6ThatLeadsNowhereIsPassedOver) {
  EXPECT_STREQ(ConnectingTo({"ff02::1", "127.0.0.1"}).what(), "nothing was thrown");
}

TEST(Tcp, BothEndsNameAConnectionAlike) {
  const Listener listener = ListenEverywhere();
  for (const std::string ip : {"127.0.0.1", "::1"}) {
    if (ip == "::1" && !HasV6()) continue;
    const Descriptor caller = ConnectTo(ip, listener.port, After(5));
    ASSERT_TRUE(WaitFor(listener.socket.get(), POLLIN, After(5)));
    const Descriptor called = Accept(listener.socket);
    const std::string host = ip == "::1" ? "[::1]" : ip;
    EXPECT_EQ(AddressOfPeer(caller), Concat(host, ':', listener.port));
    EXPECT_EQ(AddressOfSelf(called), AddressOfPeer(caller));
    EXPECT_EQ(AddressOfPeer(called), AddressOfSelf(caller));
  }
}

TEST(Tcp, IPv4ComesFirstTheLoopbackInterfaceLastAndNoAddressNeedsAScope) {
  const auto ips = LocalAddresses();
  bool v6 = false, loopback = false;
  for (const std::string& ip : ips) {
    const bool is_own = ip == "::1" || ip.compare(0, 4, "127.") == 0;
    EXPECT_TRUE(is_own || !loopback) << ip;
    v6 = v6 && is_own == loopback;  // each of the two groups begins with IPv4
    loopback = is_own;
    const bool is_v6 = ip.find(':') != std::string::npos;
    EXPECT_TRUE(is_v6 || !v6) << ip;
    v6 = is_v6;
    EXPECT_NE(ip.compare(0, 5, "fe80:"), 0) << ip;
  }
}

TEST(Tcp, APeerThatCannotBeReachedIsNamedWithItsAddresses) {
  const Error error = ConnectingTo({"255.255.255.255", "no address"});
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_TRUE(Says(error,
                   "rank 0 has lost rank 1 (cannot connect to 255.255.255.255, no address, "
                   "port "))
      << error.what();
  EXPECT_TRUE(Says(error, ": Invalid argument) in ")) << error.what();
}

TEST(Tcp, WhileTheLifelineSaysThatAPeerLivesItsLinkMayComeBack) {
  const std::string nowhere = "224.0.0.1";  // a multicast address, where no rank is ever reached
  EXPECT_EQ(ConnectingTo({nowhere}).kind(), ErrorKind::kPeerLost);
  const Error error = ConnectingTo({nowhere}, true);
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  EXPECT_TRUE(Says(error, "rank 0 gave up waiting for rank 1 (cannot connect to 224.0.0.1, port "))
      << error.what();
  EXPECT_TRUE(Says(error, ": Network is unreachable) after 2 s")) << error.what();
}

TEST(Tcp, HorovodsInterfaceIsOfferedAndNoOtherIsListenedAt) {
  ::setenv("HOROVOD_GLOO_IFACE", "lo", 1);
  TcpPort port;
  const auto address = ListenAddress::Parse(port.Address());
  EXPECT_EQ(address.ips, std::vector<std::string>{"127.0.0.1"});
  // It listens nowhere else: another loopback address is refused.
  EXPECT_TRUE(ConnectTo("127.0.0.1", address.port, After(5)));
  EXPECT_FALSE(ConnectTo("127.0.0.2", address.port, After(5)));
  ::setenv("HOROVOD_GLOO_IFACE", "none0", 1);
  const Error error = Thrown([] { TcpPort(); });
  ::unsetenv("HOROVOD_GLOO_IFACE");
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Says(error, "HOROVOD_GLOO_IFACE must name a network interface")) << error.what();
  EXPECT_TRUE(Says(error, "got 'none0'")) << error.what();
}

TEST(Tcp, TheFirstInterfaceOfTorchIsListenedAtUnlessHorovodsIsSet) {
  const auto ips = [] {
    TcpPort port;
    return ListenAddress::Parse(port.Address()).ips;
  };
  const std::vector<std::string> loopback{"127.0.0.1"};
  ::setenv("HOROVOD_GLOO_IFACE", "", 1);  // as if it were not set
  ::setenv("GLOO_SOCKET_IFNAME", "lo,none0", 1);
  EXPECT_EQ(ips(), loopback);
  ::setenv("GLOO_SOCKET_IFNAME", "none0,lo", 1);
  const Error error = Thrown([] { TcpPort(); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(Says(error, "GLOO_SOCKET_IFNAME must name a network interface")) << error.what();
  EXPECT_TRUE(Says(error, "got 'none0'")) << error.what();
  ::setenv("HOROVOD_GLOO_IFACE", "lo", 1);
  EXPECT_EQ(ips(), loopback);
  ::unsetenv("HOROVOD_GLOO_IFACE");
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(Tcp, NcclsInterfaceIsListenedAtWhereNoOtherIsNamed) {
  const auto ips = [] {
    TcpPort port;
    return ListenAddress::Parse(port.Address()).ips;
  };
  const std::vector<std::string> loopback{"127.0.0.1"};
  for (const char* name : {"l", "=lo", "lo,none0"}) {  // a prefix, a name, a list
    ::setenv("NCCL_SOCKET_IFNAME", name, 1);
    EXPECT_EQ(ips(), loopback) << name;
  }
  ::setenv("NCCL_SOCKET_IFNAME", "^lo", 1);  // any but this one
  EXPECT_EQ(ips(), LocalAddresses());
  ::setenv("NCCL_SOCKET_IFNAME", "=l", 1);
  const Error error = Thrown([] { TcpPort(); });
  EXPECT_TRUE(Says(error, "NCCL_SOCKET_IFNAME must name a network interface")) << error.what();
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_EQ(ips(), loopback);
  ::unsetenv("GLOO_SOCKET_IFNAME");
  ::unsetenv("NCCL_SOCKET_IFNAME");
}

TEST(Tcp, NonsenseIsRefused) {
  TcpPort port;
  const std::vector<std::string> own{port.Address()};
  EXPECT_STREQ(Thrown([&] { MakeTcpCommunicator({1, own, {}}, &port, nullptr); }).what(),
               "rank must lie in [0, 1), got 1");
  EXPECT_EQ(Thrown([&] { MakeTcpCommunicator({0, {"here"}, {}}, &port, nullptr); }).kind(),
            ErrorKind::kInvalidArgument);
  MakeTcpCommunicator({0, own, {}}, &port, nullptr);
  EXPECT_STREQ(Thrown([&] { port.Take(); }).what(), "this port has been taken already");
}

}  // namespace
}  // namespace hvd_sparse

/// What ranks say when they connect, and the texts that say where: strangers are dropped, and
/// whoever shows the right token comes in.

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/comm/lifeline_rendezvous.h"
#include "csrc/comm/tcp_rendezvous.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr double kPatience = 0.002;  // of one who waits for a rank that says nothing
const char* const kHost = "127.0.0.1";

/// The token of a rank.
std::string TokenOf(int rank) { return std::string(kTokenDigits, static_cast<char>('a' + rank)); }

/// Closes at once, leaving nothing behind in the kernel: inputs are many, ports are few.
void CloseAtOnce(Descriptor* socket) {
  const linger none{1, 0};
  ::setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  socket->Close();
}

void Say(const Descriptor& socket, const Bytes& bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

Descriptor Call(int port) { return ConnectTo(kHost, port, After(5)); }

/// Next connection to a listener; waits for it.
Descriptor Answer(const Listener& listener) {
  WaitFor(listener.socket.get(), POLLIN, After(5));
  return Accept(listener.socket);
}

/// To rank 1, which waits for a message of rank 0.
void GreetRank(const Bytes& hello) {
  Listener listener = ListenAnywhere();
  const int port = listener.port;
  TcpRendezvous rendezvous(1, {{{kHost}, 1, TokenOf(0)}, {{kHost}, port, TokenOf(1)}},
                           std::move(listener), false);
  rendezvous.Want(0);
  Descriptor caller = Call(port);
  Say(caller, hello);
  std::vector<TcpRendezvous::Arrival> arrivals;
  const auto deadline = After(hello.size() < kTokenDigits + sizeof(int) ? kPatience : 0.2);
  bool dropped = false;
  while (arrivals.empty() && !dropped && Clock::now() < deadline) {
    arrivals = rendezvous.Advance();
    char byte;
    dropped = ::recv(caller.get(), &byte, 1, MSG_PEEK) == 0;
  }
  const std::string token = TokenOf(1);
  const int rank = 0;
  const bool right = hello.size() >= token.size() + sizeof(rank) &&
                     std::equal(token.begin(), token.end(), hello.begin()) &&
                     std::memcmp(hello.data() + token.size(), &rank, sizeof(rank)) == 0;
  Demand(arrivals.empty() != right, "who shows the token comes in, and nobody else");
  CloseAtOnce(&caller);
}

/// As rank 1, to which rank 0 has connected.
void AnswerRank(const Bytes& answer) {
  const Listener own = ListenAnywhere();
  TcpRendezvous rendezvous(0, {{{kHost}, 1, TokenOf(0)}, {{kHost}, own.port, TokenOf(1)}},
                           ListenAnywhere(), false);
  rendezvous.Want(1);
  rendezvous.Advance();
  Descriptor callee = Answer(own);
  Say(callee, answer);
  if (answer.size() < kTokenDigits) CloseAtOnce(&callee);
  std::vector<TcpRendezvous::Arrival> arrivals;
  for (const auto deadline = After(5); arrivals.empty() && Clock::now() < deadline;) {
    arrivals = rendezvous.Advance();
  }
  Demand(arrivals.size() == 1, "an answer is taken, or refused");
  const std::string token = TokenOf(0);
  const bool right =
      answer.size() >= token.size() && std::equal(token.begin(), token.end(), answer.begin());
  Demand(arrivals[0].problem.empty() == right, "only the right token is an answer");
  CloseAtOnce(&callee);
}

/// To rank 0 of a lifeline between two ranks, or as that rank to rank 1.
void GreetLifeline(const Bytes& hello) {
  Listener listener = ListenAnywhere();
  const ListenAddress address{{kHost}, listener.port, TokenOf(0)};
  Descriptor caller = Call(listener.port);
  Say(caller, hello);
  try {
    LifelinePeers peers = AwaitPeers(listener, address, 2, "a", kPatience);
    const std::string token = TokenOf(0) + " 2 ";
    Demand(std::search(hello.begin(), hello.end(), token.begin(), token.end()) != hello.end(),
           "who shows the token comes in, and nobody else");
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kPeerLost, "a rank that does not come is lost");
  }
  CloseAtOnce(&caller);
}

void AnswerLifeline(const Bytes& answer) {
  const Listener listener = ListenAnywhere();
  std::thread rank0([&] {
    Descriptor callee = Answer(listener);
    if (!callee) return;
    Say(callee, answer);
    CloseAtOnce(&callee);
  });
  try {
    JoinPeers({{kHost}, listener.port, TokenOf(0)}, 1, 2, "a", 0.05);
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kPeerLost, "a rank that does not answer is lost");
  }
  rank0.join();
}

/// The text of an address comes from another rank, too.
void ReadAddress(const Bytes& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  try {
    const ListenAddress address = ListenAddress::Parse(text);
    Demand(address.port > 0 && address.port < 65536 && !address.ips.empty(),
           "an address leads somewhere");
    const ListenAddress again = ListenAddress::Parse(address.Text());
    Demand(again.ips == address.ips && again.port == address.port && again.token == address.token,
           "an address can be told on");
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kInvalidArgument, "what is no address is refused");
  }
}

using Scene = void (*)(const Bytes&);
constexpr Scene kScenes[] = {GreetRank, AnswerRank, GreetLifeline, AnswerLifeline, ReadAddress};

/// A record of a lifeline.
Bytes RecordOf(std::uint8_t kind, std::uint32_t rank, const std::string& text) {
  Writer writer;
  writer.Put(kind).Put(rank).Put(static_cast<std::uint32_t>(text.size()));
  return writer.PutBytes(text.data(), text.size()).bytes();
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  const auto add = [&](std::uint8_t scene, const Bytes& bytes) {
    seeds.push_back(Writer().Put(scene).PutBytes(bytes.data(), bytes.size()).bytes());
  };
  const auto add_text = [&](std::uint8_t scene, const std::string& text) {
    add(scene, Bytes(text.begin(), text.end()));
  };
  const std::string token1 = TokenOf(1);
  add(0, Writer().PutBytes(token1.data(), token1.size()).Put(0).bytes());
  add_text(1, TokenOf(0));
  add(2, RecordOf(1, 1, TokenOf(0) + " 2 host h, pid 7"));
  Bytes welcome = RecordOf(2, 0, "host h, pid 1");
  const Bytes start = RecordOf(3, 0, "");
  welcome.insert(welcome.end(), start.begin(), start.end());
  add(3, welcome);
  add_text(4, "10.0.0.1,127.0.0.1;4711;" + TokenOf(2));
  return seeds;
}

}  // namespace hvd_sparse::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hvd_sparse::fuzz;
  Reader reader(data, size);
  const auto scene = reader.Take<std::uint8_t>() % std::size(kScenes);
  kScenes[scene](reader.TakeRest());
  return 0;
}

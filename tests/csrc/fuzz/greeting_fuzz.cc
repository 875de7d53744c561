/// Handshakes between ranks, and the texts of their addresses: nobody is admitted without the key,
/// and an admitted rank may still send anything.

#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/comm/handshake.h"
#include "csrc/comm/lifeline_rendezvous.h"
#include "csrc/comm/listen_address.h"
#include "csrc/comm/tcp_rendezvous.h"
#include "tests/csrc/fuzz/target.h"

namespace hvd_sparse::fuzz {
namespace {

constexpr double kPatience = 0.002;  // limit when waiting for a silent rank
const char* const kHost = "127.0.0.1";

/// Returns the address of a rank that listens at this host's port, and its key.
ListenAddress AddressAt(int port) {
  Listener none;
  ListenAddress address = Listen(&none);  // an address of this host
  address.ips = {kHost};
  address.port = port;
  return address;
}

/// Closes at once, leaving no state in the kernel: inputs are many, ports are few.
void CloseAtOnce(Descriptor* socket) {
  const linger none{1, 0};
  ::setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  socket->Close();
}

void Say(const Descriptor& socket, const Bytes& bytes) {
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

Descriptor Call(int port) { return ConnectTo(kHost, port, After(5)); }

/// Waits for the next connection to a listener and returns it.
Descriptor Answer(const Listener& listener) {
  WaitFor(listener.socket.get(), POLLIN, After(5));
  return Accept(listener.socket);
}

/// Sends the bytes to rank 1, which waits for rank 0's hello.
void GreetRank(const Bytes& hello) {
  Listener listener = ListenAt(kHost);
  const int port = listener.port;
  TcpRendezvous rendezvous(1, {AddressAt(1), AddressAt(port)}, std::move(listener), 1, false);
  rendezvous.Request(0);
  Descriptor caller = Call(port);
  Say(caller, hello);
  const auto deadline = After(kPatience);
  while (Clock::now() < deadline) {
    Demand(rendezvous.Advance().empty(), "nobody comes in without the key");
  }
  CloseAtOnce(&caller);
}

/// Answers as rank 1, to which rank 0 has connected.
void AnswerRank(const Bytes& answer) {
  const Listener own = ListenAt(kHost);
  TcpRendezvous rendezvous(0, {AddressAt(1), AddressAt(own.port)}, ListenAt(kHost), 1, false);
  rendezvous.Request(1);
  rendezvous.Advance();
  Descriptor callee = Answer(own);
  Say(callee, answer);
  std::vector<TcpRendezvous::Arrival> arrivals;
  for (const auto patience = After(kPatience); arrivals.empty();) {
    arrivals = rendezvous.Advance();
    if (Clock::now() >= patience) CloseAtOnce(&callee);
  }
  Demand(arrivals.size() == 1, "an answer is refused");
  Demand(!arrivals[0].problem.empty(), "nobody is rank 1 without the key");
}

/// Sends the bytes to rank 0 of a lifeline between two ranks, as the admitted rank 1.
void GreetLifeline(const Bytes& records) {
  Listener listener = ListenAt(kHost);
  const ListenAddress address = AddressAt(listener.port);
  std::thread rank1([&] {
    CallerHandshake handshake(BeginConnecting(kHost, address.port), address.key, 1, 0);
    while (handshake.Advance() == HandshakeStatus::kUnderWay) {
      WaitFor(handshake.fd(), handshake.events(), After(5));
    }
    Descriptor socket = handshake.Take();
    Say(socket, records);
    CloseAtOnce(&socket);
  });
  try {
    AwaitPeers(std::move(listener), address, 2, "a", 5, 1);
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kPeerLost, "a rank that does not come is lost");
  }
  rank1.join();
}

/// Sends the bytes as rank 0, which has admitted rank 1.
void AnswerLifeline(const Bytes& records) {
  const Listener listener = ListenAt(kHost);
  const ListenAddress address = AddressAt(listener.port);
  std::thread rank0([&] {
    ListenerHandshake handshake(Answer(listener), address.key, 0);
    while (handshake.Advance() == HandshakeStatus::kUnderWay) {
      WaitFor(handshake.fd(), POLLIN, After(5));
    }
    Descriptor callee = handshake.Admit();
    Say(callee, records);
    CloseAtOnce(&callee);
  });
  try {
    JoinPeers(address, 1, 2, "a", 5);
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kPeerLost, "a rank that does not answer is lost");
  }
  rank0.join();
}

/// Parses the bytes as the text of an address, which comes from another rank, too.
void ReadAddress(const Bytes& bytes) {
  const std::string text(bytes.begin(), bytes.end());
  try {
    const ListenAddress address = ListenAddress::Parse(text);
    Demand(address.port > 0 && address.port < 65536 && !address.ips.empty(),
           "an address leads somewhere");
    const ListenAddress again = ListenAddress::Parse(address.Text());
    Demand(again.ips == address.ips && again.port == address.port && again.key == address.key,
           "an address can be told on");
  } catch (const Error& error) {
    Demand(error.kind() == ErrorKind::kInvalidArgument, "what is no address is refused");
  }
}

using Scene = void (*)(const Bytes&);
constexpr Scene kScenes[] = {GreetRank, AnswerRank, GreetLifeline, AnswerLifeline, ReadAddress};

/// Returns a record of a lifeline.
Bytes RecordOf(std::uint8_t kind, std::uint32_t rank, const std::string& text) {
  Writer writer;
  writer.Put(kind).Put(std::uint8_t{0}).Put(rank).Put(std::uint64_t{0});
  writer.Put(static_cast<std::uint32_t>(text.size()));
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
  add_text(0, std::string(36 + 32, 'x'));
  add_text(1, std::string(64, 'x'));
  add(2, RecordOf(1, 1, "host h, pid 7"));
  Bytes welcome = RecordOf(2, 0, "host h, pid 1");
  const Bytes start = RecordOf(3, 0, "");
  welcome.insert(welcome.end(), start.begin(), start.end());
  add(3, welcome);
  add_text(4, AddressAt(4711).Text());
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

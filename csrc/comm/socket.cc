/// TCP over IPv4; see the header.

#include "csrc/comm/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

/// Sets the options of a connection. After 10 s of silence the kernel probes the peer; 20 s more
/// without an answer break the connection. The kernel of a stopped process still answers.
void Configure(const Descriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

Descriptor NewSocket() {
  return Descriptor::Open(
      [] { return ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

/// Returns "10.0.0.1"; empty if the conversion fails.
std::string IpOf(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN];
  const char* ip = ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
  return ip == nullptr ? "" : ip;
}

/// Returns "10.0.0.1:4711" from getsockname() or getpeername(); empty if that fails.
std::string AddressFrom(int (*name)(int, sockaddr*, socklen_t*), const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  if (name(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return Concat(IpOf(address), ':', ntohs(address.sin_port));
}

struct Address {
  std::string interface, ip;
  bool is_loopback;
};

/// Returns the IPv4 addresses of all interfaces that are up.
std::vector<Address> Addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);

  std::vector<Address> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_in address;
    std::memcpy(&address, entry->ifa_addr, sizeof(address));
    addresses.push_back({entry->ifa_name, IpOf(address), (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return addresses;
}

}  // namespace

Clock::duration Seconds(double seconds) {
  const std::chrono::duration<double> bounded(std::clamp(seconds, 0.0, 3.2e7));
  return std::chrono::duration_cast<Clock::duration>(bounded);
}

Clock::time_point After(double seconds) { return Clock::now() + Seconds(seconds); }

int PollTimeout(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000'000));
}

bool WaitFor(int fd, short events, Clock::time_point deadline) {
  while (true) {
    pollfd polled{fd, events, 0};
    const int timeout = PollTimeout(deadline);
    if (::poll(&polled, 1, timeout) > 0) return true;
    if (timeout == 0) return false;
  }
}

std::vector<std::string> LocalAddresses() {
  std::vector<std::string> addresses, loopback;
  for (const Address& address : Addresses()) {
    (address.is_loopback ? loopback : addresses).push_back(address.ip);
  }
  if (loopback.empty()) loopback.emplace_back("127.0.0.1");
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  return addresses;
}

std::vector<std::string> AddressesOf(const std::string& interface) {
  std::vector<std::string> addresses;
  for (const Address& address : Addresses()) {
    if (address.interface == interface) addresses.push_back(address.ip);
  }
  return addresses;
}

Listener ListenAt(const std::string& ip) {
  Listener listener{NewSocket(), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  Require(::inet_pton(AF_INET, ip.c_str(), &address.sin_addr) == 1, "no IPv4 address: '", ip, "'");
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  const int fd = listener.socket.get();
  if (fd < 0 || ::bind(fd, generic, length) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, generic, &length) != 0) {
    Throw(ErrorKind::kUnavailable, "cannot listen for TCP connections at ", ip, ": ",
          std::strerror(errno));
  }
  listener.port = ntohs(address.sin_port);
  return listener;
}

Descriptor Accept(const Descriptor& listener) {
  Descriptor socket = Descriptor::Open(
      [&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (socket) Configure(socket);
  return socket;
}

std::string AddressOfSelf(const Descriptor& socket) { return AddressFrom(::getsockname, socket); }

std::string AddressOfPeer(const Descriptor& socket) { return AddressFrom(::getpeername, socket); }

Descriptor BeginConnecting(const std::string& ip, int port) {
  Descriptor socket = NewSocket();
  const int fd = socket.get();
  if (fd < 0) return socket;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::inet_pton(AF_INET, ip.c_str(), &address.sin_addr) != 1) {
    errno = EINVAL;
    return {};
  }
  Configure(socket);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
      errno != EINPROGRESS && errno != EINTR) {
    const int error = errno;
    socket.Close();
    errno = error;
  }
  return socket;
}

int ErrorOf(const Descriptor& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

Descriptor ConnectTo(const std::string& ip, int port, Clock::time_point deadline) {
  Descriptor socket = BeginConnecting(ip, port);
  if (!socket) return socket;
  const int error = WaitFor(socket.get(), POLLOUT, deadline) ? ErrorOf(socket) : ETIMEDOUT;
  if (error != 0) {
    socket.Close();
    errno = error;
  }
  return socket;
}

void BreakWhenStuck(const Descriptor& socket) {
  const int milliseconds = 30'000;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

}  // namespace hvd_sparse

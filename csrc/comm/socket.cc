/// TCP over IPv4 and IPv6; see the header.

#include "csrc/comm/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

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

/// An IPv4 or IPv6 address and a port, as the system's calls take them.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);

  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
};

Descriptor NewSocket(int family) {
  return Descriptor::Open(
      [=] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

/// Returns the endpoint of an address such as "10.0.0.1" or "fd00::1"; its family is AF_UNSPEC if
/// that is none.
Endpoint EndpointAt(const std::string& ip, int port) {
  const auto network_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  Endpoint endpoint;
  if (::inet_pton(AF_INET, ip.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = network_port;
    endpoint.length = sizeof(v4);
    std::memcpy(&endpoint.storage, &v4, sizeof(v4));
  } else if (::inet_pton(AF_INET6, ip.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = network_port;
    endpoint.length = sizeof(v6);
    std::memcpy(&endpoint.storage, &v6, sizeof(v6));
  }
  return endpoint;
}

/// Returns the address and the port of an endpoint. An IPv4 address that an IPv6 socket shows as
/// ::ffff:10.0.0.1 is 10.0.0.1, as the other end sees it.
std::pair<std::string, int> PlaceOf(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN];
  const void* address = nullptr;
  int family = storage.ss_family, port = 0;
  if (family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    address = &v4.sin_addr;
    port = ntohs(v4.sin_port);
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    family = is_mapped ? AF_INET : AF_INET6;
    address = v6.sin6_addr.s6_addr + (is_mapped ? 12 : 0);
    port = ntohs(v6.sin6_port);
  }
  const char* ip = ::inet_ntop(family, address, text, sizeof(text));
  return {ip == nullptr ? "" : ip, port};
}

/// Returns "10.0.0.1:4711" or "[fd00::1]:4711" from getsockname() or getpeername(); empty if that
/// fails.
std::string AddressFrom(int (*name)(int, sockaddr*, socklen_t*), const Descriptor& socket) {
  Endpoint endpoint;
  if (name(socket.get(), endpoint.generic(), &endpoint.length) != 0) return {};
  const auto [ip, port] = PlaceOf(endpoint.storage);
  const bool is_v6 = ip.find(':') != std::string::npos;
  return is_v6 ? Concat('[', ip, "]:", port) : Concat(ip, ':', port);
}

struct Address {
  std::string interface, ip;
  bool is_loopback, is_v6;
};

/// Returns the addresses of all interfaces that are up, IPv4's first. Link-local addresses of IPv6
/// are left out: what they mean depends on the interface of the host that uses them.
std::vector<Address> Addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);

  std::vector<Address> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const bool is_v6 = entry->ifa_addr->sa_family == AF_INET6;
    if (!is_v6 && entry->ifa_addr->sa_family != AF_INET) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, entry->ifa_addr, is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (is_v6 && reinterpret_cast<sockaddr_in6&>(storage).sin6_scope_id != 0) continue;
    addresses.push_back(
        {entry->ifa_name, PlaceOf(storage).first, (entry->ifa_flags & IFF_LOOPBACK) != 0, is_v6});
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const Address& address) { return !address.is_v6; });
  return addresses;
}

/// Listens at an address; an IPv6 socket at "::" takes IPv4 connections, too. The listener is empty
/// if that fails; errno says why.
Listener TryListening(const std::string& ip) {
  Endpoint endpoint = EndpointAt(ip, 0);
  Listener listener{NewSocket(endpoint.storage.ss_family), 0};
  const int fd = listener.socket.get(), no = 0;
  if (endpoint.storage.ss_family == AF_INET6) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  if (fd < 0 || ::bind(fd, endpoint.generic(), endpoint.length) != 0 ||
      ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, endpoint.generic(), &endpoint.length) != 0) {
    const int error = errno;
    listener.socket.Close();
    errno = error;
    return listener;
  }
  listener.port = PlaceOf(endpoint.storage).second;
  return listener;
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

std::vector<std::string> AddressesOf(const std::string& interface, bool is_prefix) {
  std::vector<std::string> addresses;
  for (const Address& address : Addresses()) {
    const std::string name =
        address.interface.substr(0, is_prefix ? interface.size() : std::string::npos);
    if (name == interface) addresses.push_back(address.ip);
  }
  return addresses;
}

Listener ListenAt(const std::string& ip) {
  Listener listener = TryListening(ip);
  if (!listener.socket) {
    Throw(ErrorKind::kUnavailable, "cannot listen for TCP connections at ", ip, ": ",
          std::strerror(errno));
  }
  return listener;
}

Listener ListenEverywhere() {
  Listener listener = TryListening("::");
  return listener.socket ? std::move(listener) : ListenAt("0.0.0.0");
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
  Endpoint endpoint = EndpointAt(ip, port);
  if (endpoint.storage.ss_family == AF_UNSPEC) {
    errno = EINVAL;
    return {};
  }
  Descriptor socket = NewSocket(endpoint.storage.ss_family);
  const int fd = socket.get();
  if (fd < 0) return socket;
  Configure(socket);
  if (::connect(fd, endpoint.generic(), endpoint.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
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

double RoundTripSeconds(const Descriptor& socket) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  const std::uint32_t none = ~std::uint32_t{0};
  return info.tcpi_min_rtt == none ? 0 : 1e-6 * info.tcpi_min_rtt;
}

void BreakWhenStuck(const Descriptor& socket) {
  const int milliseconds = 30'000;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

}  // namespace hvd_sparse

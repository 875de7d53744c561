/// TCP over IPv4 for the lifeline; see the header.

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

/// After 10 s of silence the kernels talk to each other; 20-30 s without an answer break the
/// connection. A stopped process answers, its kernel does it.
void Configure(const Descriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

Descriptor NewSocket() {
  return Descriptor::Open(
      [] { return ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
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
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);

  std::vector<std::string> addresses, loopback;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_in address;
    std::memcpy(&address, entry->ifa_addr, sizeof(address));
    char text[INET_ADDRSTRLEN];
    if (::inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text)) == nullptr) continue;
    ((entry->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : addresses).emplace_back(text);
  }
  if (loopback.empty()) loopback.emplace_back("127.0.0.1");
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  return addresses;
}

Listener ListenAnywhere() {
  Listener listener{NewSocket(), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  const int fd = listener.socket.get();
  if (fd < 0 || ::bind(fd, generic, length) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, generic, &length) != 0) {
    Throw(ErrorKind::kUnavailable, "cannot listen for TCP connections: ", std::strerror(errno));
  }
  listener.port = ntohs(address.sin_port);
  return listener;
}

Descriptor Accept(const Descriptor& listener) {
  Descriptor socket = Descriptor::Open(
      [&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (socket) {
    Configure(socket);
  } else if (errno == EMFILE || errno == ENFILE) {
    Throw(ErrorKind::kUnavailable, "cannot accept a TCP connection: ", std::strerror(errno));
  }
  return socket;
}

Descriptor ConnectTo(const std::string& ip, int port, Clock::time_point deadline) {
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

  int error = 0;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) error = errno;
  if (error == EINPROGRESS || error == EINTR) {
    socklen_t length = sizeof(error);
    if (!WaitFor(fd, POLLOUT, deadline)) {
      error = ETIMEDOUT;
    } else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    socket.Close();
    errno = error;
    return {};
  }
  Configure(socket);
  return socket;
}

}  // namespace hvd_sparse

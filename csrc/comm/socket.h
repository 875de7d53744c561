/// TCP over IPv4 and IPv6, as far as lifelines and communicators need it. All sockets are
/// non-blocking.

#pragma once

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "csrc/comm/descriptor.h"

namespace hvd_sparse {

using Clock = std::chrono::steady_clock;

/// Converts seconds to a duration of at most a year, so that sums cannot overflow.
Clock::duration Seconds(double seconds);

/// Returns the time `seconds` from now.
Clock::time_point After(double seconds);

/// Returns the milliseconds until `deadline`, as poll() takes them: rounded up, 0 if it has passed.
int PollTimeout(Clock::time_point deadline);

/// Waits until `events` (or an error) occur on `fd`; returns false if none did by `deadline`.
bool WaitFor(int fd, short events, Clock::time_point deadline);

/// Returns the addresses of this host as text, IPv4's before IPv6's, those of the loopback
/// interface last. There are no link-local addresses of IPv6 among them, which mean nothing on
/// another host.
std::vector<std::string> LocalAddresses();

/// Returns the addresses of a network interface ("eth0"), IPv4's first; none if it is down or
/// unknown. With `is_prefix`, those of all interfaces whose names begin so.
std::vector<std::string> AddressesOf(const std::string& interface, bool is_prefix = false);

struct Listener {
  Descriptor socket;
  int port = 0;
};

/// Listen at an address of this host, or at all of IPv4 and IPv6, at a port that the system
/// chooses. Throw Unavailable if that fails.
Listener ListenAt(const std::string& ip);
Listener ListenEverywhere();

/// Returns the next connection, or an empty descriptor; errno is EMFILE or ENFILE if no descriptor
/// is left.
Descriptor Accept(const Descriptor& listener);

/// Return the address of this or the other end of a connection: "10.0.0.1:4711", "[fd00::1]:4711".
std::string AddressOfSelf(const Descriptor& socket);
std::string AddressOfPeer(const Descriptor& socket);

/// True if a call on a socket failed with an error that means no more than: try again later.
inline bool MeansLater(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

/// Append and NumberAt write and read unsigned numbers of messages, little-endian.
template <typename Number>
void Append(Number number, std::string* bytes) {
  static_assert(std::is_unsigned_v<Number>);
  for (std::size_t i = 0; i < sizeof(number); ++i, number >>= 8u) {
    bytes->push_back(static_cast<char>(number));
  }
}
template <typename Number>
Number NumberAt(const std::string& bytes, std::size_t position) {
  Number number = 0;
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    number |= static_cast<Number>(static_cast<unsigned char>(bytes[position + i])) << 8 * i;
  }
  return number;
}

/// Begins to connect. Connecting has ended when poll() reports POLLOUT; ErrorOf then returns the
/// result. Returns an empty descriptor if it fails at once (errno says why).
Descriptor BeginConnecting(const std::string& ip, int port);

/// Returns the errno of a socket's error since the last call, or 0.
int ErrorOf(const Descriptor& socket);

/// Connects and waits for the result; returns an empty descriptor if that fails (errno says why).
Descriptor ConnectTo(const std::string& ip, int port, Clock::time_point deadline);

/// Returns the shortest time of a round trip that the kernel has seen on a connection, in seconds;
/// 0 if it has seen none.
double RoundTripSeconds(const Descriptor& socket);

/// Makes the kernel break the connection if its other end takes no data for 30 s, whether it is
/// gone or only busy. Only for connections which the other end always reads.
void BreakWhenStuck(const Descriptor& socket);

}  // namespace hvd_sparse

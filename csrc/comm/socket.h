/// TCP over IPv4, as far as lifelines and communicators need it. All sockets are non-blocking.

#ifndef HVD_SPARSE_COMM_SOCKET_H_
#define HVD_SPARSE_COMM_SOCKET_H_

#include <chrono>
#include <string>
#include <vector>

#include "csrc/comm/descriptor.h"

namespace hvd_sparse {

using Clock = std::chrono::steady_clock;

/// At most a year, so that sums cannot overflow.
Clock::duration Seconds(double seconds);

/// `seconds` from now.
Clock::time_point After(double seconds);

/// Milliseconds until `deadline` as poll() takes them: rounded up, 0 if it has passed.
int PollTimeout(Clock::time_point deadline);

/// Waits until `events` (or an error) show on `fd`; false if nothing did by `deadline`.
bool WaitFor(int fd, short events, Clock::time_point deadline);

/// The IPv4 addresses of this host, those of the loopback interface last.
std::vector<std::string> LocalAddresses();

/// The IPv4 addresses of one network interface ("eth0"); none if it is down or unknown.
std::vector<std::string> AddressesOf(const std::string& interface);

struct Listener {
  Descriptor socket;
  int port = 0;
};

/// Listens at an IPv4 address of this host ("0.0.0.0": at all of them), at a port that the system
/// chooses. Throws Unavailable.
Listener ListenAt(const std::string& ip);

/// The next connection, or an empty descriptor: errno is EMFILE or ENFILE if no descriptor is left.
Descriptor Accept(const Descriptor& listener);

/// "10.0.0.1:4711": the address of either end of a connection.
std::string AddressOfSelf(const Descriptor& socket);
std::string AddressOfPeer(const Descriptor& socket);

/// Begins to connect, which has ended when poll() reports POLLOUT; ErrorOf then says how. An empty
/// descriptor if it fails at once (errno says why).
Descriptor BeginConnecting(const std::string& ip, int port);

/// What went wrong on a socket since the last call, as an errno; 0: nothing.
int ErrorOf(const Descriptor& socket);

/// Connects, and waits for that; an empty descriptor if it fails (errno says why).
Descriptor ConnectTo(const std::string& ip, int port, Clock::time_point deadline);

/// Breaks a connection whose other end takes nothing for 30 s, be it gone or only busy: for
/// connections which the other end always reads.
void BreakWhenStuck(const Descriptor& socket);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_SOCKET_H_

/// The address at which a rank listens for TCP connections, and the key that callers must know.

#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// A rank's listening address. As text, which the ranks exchange through their host, it is
/// "ip1,ip2,...;port;key;loopback".
///
/// A host has several addresses, and not every one reaches it from elsewhere: a caller tries them
/// in turn, and both ends prove that they know the key (handshake.h).
struct ListenAddress {
  std::vector<std::string> ips;
  int port = 0;
  std::string key;       ///< kKeyDigits random hexadecimal digits; never part of a message
  std::string loopback;  ///< name of the loopback network of the listener's host or container

  static ListenAddress Parse(const std::string& text);  ///< throws InvalidArgument
  std::string Text() const;
  std::string Place() const;  ///< "10.0.0.1, 127.0.0.1, port 4711", for messages

  /// Returns the addresses that a caller in this process may try: loopback addresses only if this
  /// process shares the listener's loopback network. Elsewhere they lead to another process, which
  /// has bound the port there.
  std::vector<std::string> Reachable() const;
};

constexpr std::size_t kKeyDigits = 64;

/// Returns random bytes from the kernel, fit for keys. Throws Unavailable if it has none.
std::string RandomBytes(std::size_t count);

std::string NewKey();

/// Listens at a port that the system chooses, on one interface or on all: on the one that
/// HOROVOD_GLOO_IFACE names, else on the first that GLOO_SOCKET_IFNAME or else NCCL_SOCKET_IFNAME
/// lists, if one of them is set; Horovod, torch.distributed and NCCL read them, too. There it
/// listens at the first address, IPv4's before IPv6's. Otherwise it listens on all interfaces.
///
/// Throws Unavailable if that fails, InvalidArgument if the interface has no address.
ListenAddress Listen(Listener* listener);

}  // namespace hvd_sparse

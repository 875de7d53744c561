/// The address at which a rank listens for TCP connections, and the key that its callers must know.

#ifndef HVD_SPARSE_COMM_LISTEN_ADDRESS_H_
#define HVD_SPARSE_COMM_LISTEN_ADDRESS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "csrc/comm/socket.h"

namespace hvd_sparse {

/// "ip1,ip2,...;port;key;loopback" as text, which the ranks tell each other through Horovod.
///
/// A host has several addresses, and not every one leads to it from elsewhere: a caller tries them
/// in turn, and both ends prove that they know the key (handshake.h).
struct ListenAddress {
  std::vector<std::string> ips;
  int port = 0;
  std::string key;       ///< kKeyDigits hexadecimal digits, hard to guess; never in a message
  std::string loopback;  ///< names the loopback network of this process's host or container

  static ListenAddress Parse(const std::string& text);  ///< throws InvalidArgument
  std::string Text() const;
  std::string Place() const;  ///< "10.0.0.1, 127.0.0.1, port 4711", for messages

  /// The addresses that a caller in this process may try: loopback ones only where this process
  /// shares that loopback network. Elsewhere they would lead to whoever has bound the port there.
  std::vector<std::string> Reachable() const;
};

constexpr std::size_t kKeyDigits = 64;

/// Random bytes from the kernel, fit for keys. Throws Unavailable if it has none.
std::string RandomBytes(std::size_t count);

std::string NewKey();

/// Listens on the interface HOROVOD_GLOO_IFACE if that is set, as Horovod's own connections do,
/// else on all interfaces, at a port that the system chooses.
///
/// Throws Unavailable if that cannot be done, InvalidArgument if that interface has no address.
ListenAddress Listen(Listener* listener);

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_LISTEN_ADDRESS_H_

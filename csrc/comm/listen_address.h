/// Where a rank listens for TCP connections, as it is told to the other ranks.

#ifndef HVD_SPARSE_COMM_LISTEN_ADDRESS_H_
#define HVD_SPARSE_COMM_LISTEN_ADDRESS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace hvd_sparse {

/// "ip1,ip2,...;port;token" as text. A host has several addresses, not all of which lead there from
/// elsewhere; who connects tries them in turn, and the token proves that it has come to the right
/// place.
struct ListenAddress {
  std::vector<std::string> ips;
  int port = 0;
  std::string token;

  static ListenAddress Parse(const std::string& text);  ///< throws InvalidArgument
  std::string Text() const;
  std::string Place() const;  ///< "10.0.0.1, 127.0.0.1, port 4711", for messages
};

constexpr std::size_t kTokenDigits = 32;

/// Hard to guess; kTokenDigits hexadecimal digits.
std::string NewToken();

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_LISTEN_ADDRESS_H_

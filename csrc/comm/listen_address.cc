#include "csrc/comm/listen_address.h"

#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "csrc/base/error.h"

namespace hvd_sparse {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";
constexpr char kHorovodInterface[] = "HOROVOD_GLOO_IFACE";
constexpr char kTorchInterface[] = "GLOO_SOCKET_IFNAME";  // may be a list: "eth0,eth1"
constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";   // a list of prefixes, or "=eth0"

bool IsKey(const std::string& text) {
  return text.size() == kKeyDigits && text.find_first_not_of(kHexDigits) == std::string::npos;
}

bool IsLoopback(const std::string& ip) { return ip.compare(0, 4, "127.") == 0 || ip == "::1"; }

/// Returns a name that is equal for two processes only if they share a loopback network: one boot
/// of one kernel, and one network namespace. Where the kernel does not tell its boot, the host's
/// name stands for it.
std::string LoopbackNetwork() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, boot)) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    boot = host;
  }
  char name[64] = "";
  const ssize_t length = ::readlink("/proc/self/ns/net", name, sizeof(name));
  return Concat(boot, ' ', std::string(name, length < 0 ? 0 : static_cast<std::size_t>(length)));
}

/// The network interface that the environment asks for.
struct Interface {
  std::string variable;  ///< the variable that names it; empty if none does
  std::string name;
  bool is_prefix = false;  ///< true if any interface will do whose name begins so
};

Interface ChosenInterface() {
  const auto value_of = [](const char* variable) {
    const char* value = std::getenv(variable);
    const std::string list = value == nullptr ? "" : value;
    return list.substr(0, list.find(','));
  };
  for (const char* variable : {kHorovodInterface, kTorchInterface}) {
    const std::string name = value_of(variable);
    if (!name.empty()) return {variable, name};
  }
  const std::string name = value_of(kNcclInterface);
  if (name.empty() || name[0] == '^') return {};  // "^eth0" says which one not to take
  if (name[0] == '=') return {kNcclInterface, name.substr(1)};
  return {kNcclInterface, name, true};
}

}  // namespace

ListenAddress ListenAddress::Parse(const std::string& text) {
  ListenAddress address;
  std::istringstream parts(text);
  std::string ips, ip, port;
  std::getline(parts, ips, ';');
  std::getline(parts, port, ';');
  std::getline(parts, address.key, ';');
  std::getline(parts, address.loopback);
  for (std::istringstream list(ips); std::getline(list, ip, ',');) address.ips.push_back(ip);
  const bool is_number = !port.empty() && port.size() <= 5 &&
                         port.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) address.port = std::stoi(port);
  const bool valid = !address.ips.empty() && IsKey(address.key) && address.port > 0;
  Require(valid && address.port < 65536, "nobody listens at '", ips, ';', port, "'");
  return address;
}

std::string ListenAddress::Text() const {
  std::string text;
  for (const std::string& ip : ips) text += (text.empty() ? "" : ",") + ip;
  return Concat(text, ';', port, ';', key, ';', loopback);
}

std::string ListenAddress::Place() const {
  std::string text;
  for (const std::string& ip : ips) text += ip + ", ";
  return Concat(text, "port ", port);
}

std::vector<std::string> ListenAddress::Reachable() const {
  const bool shares_loopback = loopback == LoopbackNetwork();
  std::vector<std::string> reachable;
  for (const std::string& ip : ips) {
    if (shares_loopback || !IsLoopback(ip)) reachable.push_back(ip);
  }
  return reachable;
}

std::string RandomBytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t got = 0; got < count;) {
    const ssize_t more = ::getrandom(&bytes[got], count - got, 0);
    if (more < 0 && errno != EINTR) {
      Throw(ErrorKind::kUnavailable, "cannot draw random bytes: ", std::strerror(errno));
    }
    if (more > 0) got += static_cast<std::size_t>(more);
  }
  return bytes;
}

std::string NewKey() {
  std::string key;
  for (const char byte : RandomBytes(kKeyDigits / 2)) {
    key += kHexDigits[static_cast<unsigned char>(byte) / 16];
    key += kHexDigits[static_cast<unsigned char>(byte) % 16];
  }
  return key;
}

ListenAddress Listen(Listener* listener) {
  const Interface interface = ChosenInterface();
  ListenAddress address;
  if (interface.variable.empty()) {
    *listener = ListenEverywhere();
    address.ips = LocalAddresses();
  } else {
    const std::vector<std::string> ips = AddressesOf(interface.name, interface.is_prefix);
    Require(!ips.empty(), interface.variable, " must name a network interface with an IP address, ",
            "got '", interface.name, "'");
    *listener = ListenAt(ips.front());
    address.ips = {ips.front()};
  }
  address.port = listener->port;
  address.key = NewKey();
  address.loopback = LoopbackNetwork();
  return address;
}

}  // namespace hvd_sparse

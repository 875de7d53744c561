#include "csrc/comm/listen_address.h"

#include <random>
#include <sstream>

#include "csrc/base/error.h"

namespace hvd_sparse {

ListenAddress ListenAddress::Parse(const std::string& text) {
  ListenAddress address;
  std::istringstream parts(text);
  std::string ips, ip, port;
  std::getline(parts, ips, ';');
  std::getline(parts, port, ';');
  std::getline(parts, address.token);
  for (std::istringstream list(ips); std::getline(list, ip, ',');) address.ips.push_back(ip);
  const bool is_number = !port.empty() && port.size() <= 5 &&
                         port.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) address.port = std::stoi(port);
  const bool valid = !address.ips.empty() && !address.token.empty() && address.port > 0;
  Require(valid && address.port < 65536, "nobody listens at '", text, "'");
  return address;
}

std::string ListenAddress::Text() const {
  std::string text;
  for (const std::string& ip : ips) text += (text.empty() ? "" : ",") + ip;
  return Concat(text, ';', port, ';', token);
}

std::string ListenAddress::Place() const {
  std::string text;
  for (const std::string& ip : ips) text += ip + ", ";
  return Concat(text, "port ", port);
}

std::string NewToken() {
  std::random_device random;
  std::string token;
  while (token.size() < kTokenDigits) token += "0123456789abcdef"[random() % 16];
  return token;
}

}  // namespace hvd_sparse

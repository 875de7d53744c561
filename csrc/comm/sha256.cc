#include "csrc/comm/sha256.h"

#include <array>
#include <cstdint>

namespace hvd_sparse {
namespace {

constexpr std::size_t kBlockBytes = 64;

constexpr std::array<std::uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

using State = std::array<std::uint32_t, 8>;

constexpr State kInitialState = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

std::uint32_t RotatedRight(std::uint32_t word, unsigned bits) {
  return word >> bits | word << (32 - bits);
}

std::uint32_t BigEndianWord(const char* bytes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8u | static_cast<unsigned char>(bytes[i]);
  return word;
}

void AppendBigEndian(std::uint64_t number, int bytes, std::string* text) {
  for (int i = bytes - 1; i >= 0; --i) text->push_back(static_cast<char>(number >> 8 * i));
}

/// Updates the state with one block. Names follow FIPS 180-4, section 6.2.2.
void Compress(const char* block, State* state) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) w[t] = BigEndianWord(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t x = w[t - 15], y = w[t - 2];
    const std::uint32_t sigma0 = RotatedRight(x, 7) ^ RotatedRight(x, 18) ^ x >> 3u;
    const std::uint32_t sigma1 = RotatedRight(y, 17) ^ RotatedRight(y, 19) ^ y >> 10u;
    w[t] = w[t - 16] + sigma0 + w[t - 7] + sigma1;
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = RotatedRight(e, 6) ^ RotatedRight(e, 11) ^ RotatedRight(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t t1 = h + sum1 + choice + kRoundConstants[t] + w[t];
    const std::uint32_t sum0 = RotatedRight(a, 2) ^ RotatedRight(a, 13) ^ RotatedRight(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const State words = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < words.size(); ++i) (*state)[i] += words[i];
}

std::string XoredWith(std::string block, unsigned char mask) {
  for (char& byte : block) byte = static_cast<char>(static_cast<unsigned char>(byte) ^ mask);
  return block;
}

}  // namespace

std::string Sha256(const std::string& message) {
  std::string padded = message;
  padded.push_back(static_cast<char>(0x80));
  while (padded.size() % kBlockBytes != kBlockBytes - 8) padded.push_back('\0');
  AppendBigEndian(8 * std::uint64_t{message.size()}, 8, &padded);

  State state = kInitialState;
  for (std::size_t at = 0; at < padded.size(); at += kBlockBytes) {
    Compress(padded.data() + at, &state);
  }
  std::string digest;
  for (const std::uint32_t word : state) AppendBigEndian(word, 4, &digest);
  return digest;
}

std::string HmacSha256(const std::string& key, const std::string& message) {
  std::string block = key.size() > kBlockBytes ? Sha256(key) : key;
  block.resize(kBlockBytes, '\0');
  return Sha256(XoredWith(block, 0x5c) + Sha256(XoredWith(block, 0x36) + message));
}

bool EqualInConstantTime(const std::string& one, const std::string& other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  }
  return difference == 0;
}

}  // namespace hvd_sparse

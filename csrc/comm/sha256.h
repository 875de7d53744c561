/// SHA-256 (FIPS 180-4) and the message authentication code based on it (RFC 2104).

#pragma once

#include <cstddef>
#include <string>

namespace hvd_sparse {

constexpr std::size_t kSha256Bytes = 32;

/// Returns the digest of `message`: kSha256Bytes bytes.
std::string Sha256(const std::string& message);

/// Returns the HMAC of `message` under `key`: kSha256Bytes bytes.
std::string HmacSha256(const std::string& key, const std::string& message);

/// Compares two codes in a time that does not depend on where they differ.
bool EqualInConstantTime(const std::string& one, const std::string& other);

}  // namespace hvd_sparse

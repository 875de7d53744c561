/// The errors of the core, and its warnings. bindings/ turns each kind into the Python exception of
/// the same name.

#pragma once

#include <atomic>
#include <iostream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

namespace hvd_sparse {

enum class ErrorKind {
  kInvalidArgument,  ///< a mistake of the caller, reported before anything was sent
  kUnavailable,      ///< not built in, or not provided by the MPI library
  kPeerLost,         ///< a peer died, or cannot be reached, while this rank waited for it
  kPeerLeft,         ///< a peer left while this rank waited for it
  kTimeout,          ///< the deadline has passed, though the peer is alive
  kExchangeFailed,   ///< a rank ended the exchange on all ranks
  kNonFinite,        ///< a gradient of some rank, or a sum, is not finite: the step was undone
  kDisagreement,     ///< the ranks disagree on what to do next
  kOutOfMemory,      ///< a rank ran out of memory
};
constexpr ErrorKind kLastErrorKind = ErrorKind::kOutOfMemory;

/// Returns the kind that the other ranks report when an error of kind `kind` on one rank ends the
/// exchange. An invalid argument on that rank is not a mistake of the others.
constexpr ErrorKind KindOnPeers(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kPeerLost:
    case ErrorKind::kPeerLeft:
    case ErrorKind::kTimeout:
    case ErrorKind::kDisagreement:
    case ErrorKind::kOutOfMemory:
      return kind;
    default:
      return ErrorKind::kExchangeFailed;
  }
}

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Concatenates its arguments into one string: "density must lie in (0, 1], got ", 1.5.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream text;
  text.exceptions(std::ios::badbit);  // without memory it would cut the text
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void Throw(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, Concat(parts...));
}

/// Throws InvalidArgument with the concatenated message unless `condition` holds.
template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) Throw(ErrorKind::kInvalidArgument, parts...);
}

/// Stands in for an error when there is no memory left to describe it.
inline const Error kNotDescribed(ErrorKind::kOutOfMemory, "a rank ran out of memory");

/// Returns an error with the concatenated message; never fails.
template <typename... Parts>
Error Described(ErrorKind kind, const Parts&... parts) noexcept {
  try {
    return {kind, Concat(parts...)};
  } catch (...) {
    return kNotDescribed;
  }
}

/// Converts the exception being handled into the error that ends an exchange; `where` names the
/// place. Does not fail for want of memory, since the caller still has to tell the other ranks.
template <typename... Parts>
Error CurrentError(int rank, const Parts&... where) {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Described(ErrorKind::kOutOfMemory, "rank ", rank, " ran out of memory in ", where...);
  } catch (const std::exception& error) {
    return Described(ErrorKind::kExchangeFailed, "rank ", rank, " failed in ", where..., ": ",
                     error.what());
  }
}

// ---- Warnings: lines on stderr, unless the log level suppresses them ----------------------------

/// True if Warn prints; hvd_sparse/log.py sets it from the log level.
inline std::atomic<bool> warnings_are_shown{true};

template <typename... Parts>
void Warn(const Parts&... parts) {
  if (warnings_are_shown) std::cerr << Concat("hvd_sparse: warning: ", parts..., "\n");
}

}  // namespace hvd_sparse

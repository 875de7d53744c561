/// The errors of the core. bindings/ turns each kind into the Python exception of the same name.

#ifndef HVD_SPARSE_BASE_ERROR_H_
#define HVD_SPARSE_BASE_ERROR_H_

#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

namespace hvd_sparse {

enum class ErrorKind {
  kInvalidArgument,  ///< the caller's mistake, refused before anything was sent
  kUnavailable,      ///< not built in, or not offered by the MPI library at hand
  kPeerLost,         ///< another rank died, or cannot be reached, while it was waited for
  kPeerLeft,         ///< another rank left while it was waited for
  kTimeout,          ///< another rank is alive, but the deadline has passed
  kExchangeFailed,   ///< a rank ended the exchange for all
  kNonFinite,        ///< some rank's gradient, or a sum, is not finite: the step was undone
  kDisagreement,     ///< the ranks are not about to do the same thing
  kOutOfMemory,      ///< a rank has no memory left for what it has to do
};
constexpr ErrorKind kLastErrorKind = ErrorKind::kOutOfMemory;

/// As what the other ranks meet an error that ended the exchange on one of them. A mistake in that
/// rank's own arguments is no mistake in theirs.
constexpr ErrorKind KindOnOthers(ErrorKind kind) {
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

/// "density must lie in (0, 1], got " << 1.5, as one string.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream text;
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

/// In place of an error that there is no memory left to describe.
inline const Error kNotDescribed(ErrorKind::kOutOfMemory, "a rank ran out of memory");

/// An error with the concatenated message; does not fail.
template <typename... Parts>
Error Described(ErrorKind kind, const Parts&... parts) noexcept {
  try {
    return {kind, Concat(parts...)};
  } catch (...) {
    return kNotDescribed;
  }
}

/// What is being caught, as what ends an exchange; `where` names the place. Does not fail: whoever
/// catches it has yet to tell others.
template <typename... Parts>
Error Caught(int rank, const Parts&... where) {
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

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_BASE_ERROR_H_

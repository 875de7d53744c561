/// File descriptors that are closed in forked children.
///
/// A connection reveals a process's death only if no other process holds it open. CLOEXEC closes it
/// in programs started by exec; children that only fork (data loader workers) close it in a
/// pthread_atfork handler.

#pragma once

#include <functional>

namespace hvd_sparse {

/// Returns the number of forks between the process that loaded this library and the calling one.
int ForkCount();

/// Owns a file descriptor. Movable; empty in forked children.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept { *this = static_cast<Descriptor&&>(other); }
  Descriptor& operator=(Descriptor&& other) noexcept;

  /// Owns the descriptor that `open` returns, e.g. [] { return ::eventfd(0, EFD_CLOEXEC); }, or
  /// none if that is negative (errno says why). Forks wait for `open`, so it must not block.
  static Descriptor Open(const std::function<int()>& open);

  explicit operator bool() const { return get() >= 0; }
  int get() const { return fork_count_ == ForkCount() ? fd_ : -1; }
  void Close();

 private:
  int fd_ = -1;
  int fork_count_ = 0;  // ForkCount() of the process that opened it
};

}  // namespace hvd_sparse

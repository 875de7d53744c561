/// File descriptors that forked children do not keep.
///
/// A connection tells of a process's death only if no other process holds it open. Programs that
/// are started by exec are kept out by CLOEXEC; children that only fork (data loader workers) close
/// what they have inherited in a pthread_atfork handler.

#ifndef HVD_SPARSE_COMM_DESCRIPTOR_H_
#define HVD_SPARSE_COMM_DESCRIPTOR_H_

#include <functional>

namespace hvd_sparse {

/// How many forks lie between the process that loaded this library and the calling one.
int ForkCount();

/// Owns a file descriptor. Movable; empty in forked children.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept { *this = static_cast<Descriptor&&>(other); }
  Descriptor& operator=(Descriptor&& other) noexcept;

  /// Owns what `open` returns, e.g. [] { return ::eventfd(0, EFD_CLOEXEC); }, unless that is
  /// negative (errno says why). No fork can happen in between, so `open` must not block.
  static Descriptor Open(const std::function<int()>& open);

  explicit operator bool() const { return get() >= 0; }
  int get() const { return fork_count_ == ForkCount() ? fd_ : -1; }
  void Close();

 private:
  int fd_ = -1;
  int fork_count_ = 0;  // of the process that opened it
};

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_COMM_DESCRIPTOR_H_

/// Messages between streams, for a library that moves them by a thread of its own: NCCL's stand-in.
///
/// Its own memory and locks order nothing: all that it does is Unseen, with UnseenLocks.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_MESSAGE_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_MESSAGE_H_

#include <cstddef>
#include <vector>

#include "tests/csrc/emulation/order.h"
#include "tests/csrc/emulation/strand.h"

namespace hvd_sparse::emulation {

/// Bytes under way. Who receives them is behind all that came before their sending.
struct Message {
  explicit Message(std::size_t size) : bytes(size) {}

  std::vector<char> bytes;
  Order order;
};

/// One of the things that a stream was given at once: behind what the stream was given before, and
/// beside the others. What the stream does next is behind it.
class __attribute__((visibility("default"))) Part {  // of the program, for what that loads
 public:
  explicit Part(cudaStream_t stream);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  /// It has not been waited for: what the stream was given since has been done before it.
  void ComesLate();

  // Done once, by any thread, or never.
  void Send(const void* from, Message* message);
  void Receive(const Message& message, void* to);

 private:
  template <typename Move>
  void Do(const Move& move);

  const cudaStream_t stream_;
  void* strand_ = nullptr;
};

}  // namespace hvd_sparse::emulation

#endif  // HVD_SPARSE_TESTS_CSRC_EMULATION_MESSAGE_H_

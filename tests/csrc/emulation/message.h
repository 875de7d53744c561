/// Messages between streams, for a library that moves them on a thread of its own: NCCL's stand-in.
///
/// Its own memory and locks order nothing: all of its work is under Unseen and UnseenLocks.

#ifndef HVD_SPARSE_TESTS_CSRC_EMULATION_MESSAGE_H_
#define HVD_SPARSE_TESTS_CSRC_EMULATION_MESSAGE_H_

#include <cstddef>
#include <vector>

#include "tests/csrc/emulation/order.h"
#include "tests/csrc/emulation/strand.h"

namespace hvd_sparse::emulation {

/// The bytes of a message in flight. Their receiver follows everything before their sending.
struct Message {
  explicit Message(std::size_t size) : bytes(size) {}

  std::vector<char> bytes;
  Order order;
};

/// One of several operations given to a stream as a group: it follows the stream's earlier work,
/// and is unordered with the others. The stream's later work follows it.
class __attribute__((visibility("default"))) Part {  // of the program, for the library it loads
 public:
  explicit Part(cudaStream_t stream);
  ~Part();
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  /// Marks the operation as not waited for: the stream's later work may be done before it.
  void ComesLate();

  // Called once, by any thread, or never.
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

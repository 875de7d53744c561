/// Messages whose bytes tell from whom they come, for whom they are, and which in turn.

#ifndef HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_
#define HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_sparse {

using Bytes = std::vector<std::uint8_t>;

/// What rank `from` has for rank `to`, the n-th time.
inline Bytes Message(int from, int to, int n, std::int64_t bytes) {
  Bytes message(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<std::uint8_t>(i * 7 + i / 251 + 31 * from + 17 * to + n);
  }
  return message;
}

}  // namespace hvd_sparse

#endif  // HVD_SPARSE_TESTS_CSRC_CUDA_MESSAGES_H_

#include "csrc/comm/group_communicator.h"

#include <vector>

namespace hvd_sparse {

void GroupCommunicator::Transfer(Span<const Outgoing> out, Span<Incoming> in,
                                 const std::string& what) {
  std::vector<Outgoing> outgoing(out.begin(), out.end());
  std::vector<Incoming> incoming(in.begin(), in.end());
  for (Outgoing& message : outgoing) message.peer = first_ + stride_ * message.peer;
  for (Incoming& message : incoming) message.peer = first_ + stride_ * message.peer;
  whole_.Transfer(outgoing, incoming, what);
  for (std::int64_t i = 0; i < in.size; ++i) {
    in[i].bytes = incoming[static_cast<std::size_t>(i)].bytes;
  }
}

}  // namespace hvd_sparse

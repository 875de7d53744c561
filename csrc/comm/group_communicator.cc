#include "csrc/comm/group_communicator.h"

namespace hvd_sparse {

void GroupCommunicator::Transfer(Span<const Outgoing> out, Span<Incoming> in,
                                 const std::string& what) {
  Begin(out, in, what);
  Wait();
}

void GroupCommunicator::Begin(Span<const Outgoing> out, Span<Incoming> in,
                              const std::string& what) {
  Flight& flight =
      flights_.emplace_back(Flight{{out.begin(), out.end()}, {in.begin(), in.end()}, in});
  for (Outgoing& message : flight.out) message.peer = first_ + stride_ * message.peer;
  for (Incoming& message : flight.in) message.peer = first_ + stride_ * message.peer;
  whole_.Begin(flight.out, flight.in, what);
}

void GroupCommunicator::Wait() {
  whole_.Wait();
  const Flight& flight = flights_.front();
  for (std::int64_t i = 0; i < flight.given.size; ++i) {
    flight.given[i].bytes = flight.in[static_cast<std::size_t>(i)].bytes;
  }
  flights_.pop_front();
}

}  // namespace hvd_sparse
